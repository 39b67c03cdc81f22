"""Behavioral cloning learns what it is shown, at the rate that its schedule says, and takes back what went wrong."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import CloneConfig
from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.network import NetworkSettings
from ludus.demonstrations import Demonstration
from ludus.protocol.spec import BehaviorSpec
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.bc import LOSS, BehavioralCloning, Cloning
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.imitation import continuous_error, cross_entropy
from worker.learning.networks.actor import Actor, Parts

SMALL: dict[str, Any] = {"hidden_units": 16, "num_layers": 1}


def make_actor(spec: BehaviorSpec, *, head: str = "gaussian", **network: Any) -> Actor:
    settings = NetworkSettings.model_validate({**SMALL, **network})
    return Actor(spec, settings, torch.Generator().manual_seed(1), head=head)


def make_cloning(
    actor: Actor,
    demonstration: Demonstration,
    *,
    learning_rate: float = 1e-2,
    batch_size: int = 64,
    sequence_length: int = 1,
    seed: int = 0,
    **config: Any,
) -> BehavioralCloning:
    section = BehavioralCloningConfig.model_validate({"demo_path": "there", **config})
    return BehavioralCloning(
        section,
        actor,
        DemonstrationBuffer([demonstration], demonstration.spec),
        learning_rate=learning_rate,
        batch_size=batch_size,
        sequence_length=sequence_length,
        seed=seed,
    )


def make_clone(demonstration: Demonstration, *, seed: int = 1, network: Any = None, **config: Any) -> Cloning:
    hyper = {"batch_size": 32, "learning_rate": 1e-2, **config.pop("hyperparameters", {})}
    section = CloneConfig.model_validate(
        {
            "trainer_type": "clone",
            "demo_path": "there",
            "hyperparameters": hyper,
            "network_settings": {**SMALL, **(network or {})},
            **config,
        }
    )
    buffer = DemonstrationBuffer([demonstration], demonstration.spec)
    return Cloning(section, demonstration.spec, buffer, torch.device("cpu"), seed)


def lesson(spec: BehaviorSpec, steps: int = 256, **overrides: Any) -> Demonstration:
    """An expert whose continuous actions are linear in what it sees, and whose choices are its signs."""
    expert = make_demonstration(spec, lengths=[8] * (steps // 8))
    seen = expert.observations[0].reshape(steps, -1)
    columns, branches = spec.actions.continuous_size, len(spec.actions.discrete_branches)
    continuous = np.tanh(seen[:, :1] @ np.full((1, columns), 0.5)).astype(np.float32)
    discrete = np.repeat((seen[:, :1] > 0).astype(np.int32), branches, 1)
    return make_demonstration(
        spec, lengths=[8] * (steps // 8), **{"continuous": continuous, "discrete": discrete, **overrides}
    )


def weights(actor: Actor) -> np.ndarray:
    return actor.flatten()


class TestLoss:
    def test_continuous_error_is_the_expected_squared_error_of_what_the_environment_gets(self) -> None:
        parts = Parts(torch.tensor([[1.5, -0.3]]), torch.tensor([[0.0, -1.0]]), torch.zeros(1, 0))
        expert = torch.tensor([[0.2, 0.4]])
        samples = (
            parts.means + parts.log_sigmas.exp() * torch.randn(400_000, 2, generator=torch.Generator().manual_seed(1))
        ) / 3

        error = continuous_error(parts.means, parts.log_sigmas, expert, None)

        # Means: 0.3 squared, 0.5 squared. Deviations: a third, and 0.3679 / 3, squared.
        assert error.item() == pytest.approx((0.09 + 0.25 + 0.11111 + 0.01504) / 2, abs=1e-4)
        assert error.item() == pytest.approx((samples - expert).square().mean().item(), abs=2e-3)

    def test_squashed_actions_are_compared_after_tanh(self) -> None:
        parts = Parts(torch.tensor([[0.5]]), torch.tensor([[0.0]]), torch.zeros(1, 0))

        error = continuous_error(parts.means, parts.log_sigmas, torch.tensor([[0.1]]), torch.tensor([[2.0]]))

        assert error.item() == pytest.approx((np.tanh(2.5) - 0.1) ** 2, rel=1e-5)

    def test_cross_entropy_is_the_mean_over_branches_and_knows_masks(self) -> None:
        logits = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]])
        expert = torch.tensor([[0, 1]])

        everything = cross_entropy(logits, expert, None, (3, 2))
        masked = cross_entropy(logits, expert, torch.tensor([[True, True, False, False, True]]), (3, 2))

        assert everything.item() == pytest.approx((np.log(3) + np.log(2)) / 2)
        assert masked.item() == pytest.approx(np.log(2) / 2)

    def test_padding_does_not_change_the_loss(self) -> None:
        spec = make_spec(vector(2), branches=(3,))
        expert = make_demonstration(spec, lengths=[5])
        network = {"memory": {"sequence_length": 8, "memory_size": 8}}
        padded = make_cloning(make_actor(spec, **network), expert, sequence_length=8, batch_size=8)
        exact = make_cloning(make_actor(spec, **network), expert, sequence_length=5, batch_size=5)

        assert padded.imitator.loss(torch.tensor([0])).item() == pytest.approx(
            exact.imitator.loss(torch.tensor([0])).item(), rel=1e-5
        )


VARIANTS = {
    "continuous": make_spec(vector(2), continuous=2),
    "discrete": make_spec(vector(2), branches=(2, 2)),
    "hybrid": make_spec(vector(2), continuous=1, branches=(2,)),
}


@pytest.mark.parametrize(
    ("kind", "head"),
    [("continuous", "gaussian"), ("continuous", "squashed"), ("discrete", "gaussian"), ("hybrid", "squashed")],
)
def test_the_actor_comes_to_act_as_it_was_shown(kind: str, head: str) -> None:
    spec = VARIANTS[kind]
    expert = lesson(spec)
    actor = make_actor(spec, head=head)
    cloning = make_cloning(actor, expert, learning_rate=3e-2, batch_size=128)

    first = cloning.update(0)[LOSS]
    for _ in range(20):
        last = cloning.update(0)[LOSS]

    continuous, discrete, _ = actor.deterministic([torch.from_numpy(expert.observations[0])], None)
    assert last < 0.4 * first
    np.testing.assert_allclose(continuous.numpy(), expert.continuous, atol=0.25)
    wrong = discrete.numpy() != expert.discrete
    assert wrong.sum() <= 0.05 * wrong.size


def test_imitation_makes_a_policy_surer() -> None:
    spec = make_spec(vector(2), continuous=1)
    actor = make_actor(spec)
    cloning = make_cloning(actor, lesson(spec))

    for _ in range(20):
        cloning.update(0)

    assert actor.log_sigma.item() < -0.5


def test_a_memory_lets_the_clone_know_what_it_saw_before() -> None:
    """The expert names what was seen one step ago: without memory that cannot be imitated."""
    spec = make_spec(vector(1), branches=(2,))
    rng = np.random.default_rng(1)
    lengths = [8] * 32
    seen = rng.choice(np.array([-1, 1], np.float32), (256, 1))
    before = np.roll(seen, 1)
    before[::8] = -1
    expert = make_demonstration(spec, lengths, observations=(seen,), discrete=(before > 0).astype(np.int32))
    recurrent = make_actor(spec, memory={"sequence_length": 8, "memory_size": 16})
    blind = make_actor(spec)

    for actor in (recurrent, blind):
        cloning = make_cloning(actor, expert, sequence_length=8, learning_rate=3e-2)
        for _ in range(12):
            loss = cloning.update(0)[LOSS]
        if actor is recurrent:
            assert loss < 0.1
        else:
            assert loss > 0.5


class TestSchedule:
    def test_the_rate_falls_to_nothing_over_the_steps_and_then_imitation_is_over(self) -> None:
        spec = make_spec(vector(2), branches=(2,))
        actor = make_actor(spec)
        cloning = make_cloning(actor, lesson(spec), learning_rate=1e-3, strength=0.5, steps=1000)

        moved = []
        for step in (0, 500, 999, 1000, 5000):
            before = weights(actor)
            metrics = cloning.update(step)
            moved.append(np.abs(weights(actor) - before).max())

        assert metrics == {}
        assert moved[3:] == [0.0, 0.0]
        # Adam's first steps move a weight by the rate: 5e-4 each, 3 passes of 4 minibatches.
        assert moved[0] == pytest.approx(12 * 5e-4, rel=0.3)
        assert moved[0] > moved[1] > moved[2] > 0

    def test_without_steps_the_rate_stays(self) -> None:
        spec = make_spec(vector(2), branches=(2,))
        cloning = make_cloning(make_actor(spec), lesson(spec))

        assert not cloning.is_over(10**12)
        assert LOSS in cloning.update(10**12)

    def test_no_strength_means_no_imitation(self) -> None:
        spec = make_spec(vector(2), branches=(2,))

        assert make_cloning(make_actor(spec), lesson(spec), strength=0).update(0) == {}

    @pytest.mark.parametrize(
        ("config", "minibatches"),
        [
            ({}, 3 * 4),  # 256 steps in minibatches of 64
            ({"num_epoch": 1}, 4),
            ({"num_epoch": 1, "batch_size": 100}, 2),  # a remainder of 56 is left out
            ({"num_epoch": 1, "samples_per_update": 130}, 2),
            ({"num_epoch": 1, "samples_per_update": 10}, 1),  # a smaller minibatch
            ({"num_epoch": 2, "batch_size": 1000}, 2),  # no more than there are
        ],
    )
    def test_an_update_takes_as_many_gradient_steps_as_its_numbers_say(
        self, config: dict[str, Any], minibatches: int
    ) -> None:
        spec = make_spec(vector(2), branches=(2,))
        cloning = make_cloning(make_actor(spec), lesson(spec), **config)

        cloning.update(0)

        assert cloning.state_dict()["optimizer"]["steps"].item() == minibatches

    @pytest.mark.parametrize(
        ("config", "minibatches"), [({}, 3), ({"num_epoch": 1}, 1), ({"samples_per_update": 5}, 3)]
    )
    def test_beside_sac_a_gradient_step_brings_so_many_minibatches(
        self, config: dict[str, Any], minibatches: int
    ) -> None:
        spec = make_spec(vector(2), continuous=1)
        cloning = make_cloning(make_actor(spec, head="squashed"), lesson(spec), steps=100, **config)

        loss = cloning.learn(0)

        assert loss is not None
        assert loss.isfinite()
        assert cloning.state_dict()["optimizer"]["steps"].item() == minibatches
        assert cloning.learn(100) is None


class TestSharing:
    def test_another_optimizer_of_the_actor_keeps_its_weights_and_gradients(self) -> None:
        spec = make_spec(vector(2), branches=(2,))
        actor = make_actor(spec)
        theirs = FlatAdam((name, weight) for name, weight in actor.named_parameters() if weight.numel())
        theirs.snapshot()
        for parameter in actor.parameters():
            if parameter.grad is not None:
                parameter.grad.fill_(0.25)
        cloning = make_cloning(actor, lesson(spec))

        cloning.update(0)
        imitated = weights(actor)
        theirs.step(1e-3)

        assert all((parameter.grad == 0.25).all() for parameter in actor.parameters() if parameter.grad is not None)
        assert np.abs(weights(actor) - imitated).max() == pytest.approx(1e-3, rel=1e-2)

    def test_an_update_that_meets_nan_is_taken_back_and_says_where(self) -> None:
        spec = make_spec(vector(2), branches=(2,))
        actor = make_actor(spec)
        cloning = make_cloning(actor, lesson(spec))
        cloning.update(0)
        cloning.imitator.demonstrations.transitions.observations[0][17] = torch.nan
        before, state = weights(actor), cloning.state_dict()

        with pytest.raises(Diverged, match="Pretraining Loss is not finite in minibatch"):
            cloning.update(0)

        np.testing.assert_array_equal(weights(actor), before)
        assert torch.equal(cloning.state_dict()["generator"], state["generator"])

    @pytest.mark.parametrize("minibatches", [1, 12])
    def test_an_update_whose_loss_explodes_is_taken_back_and_tells_both_sizes(self, minibatches: int) -> None:
        spec = make_spec(vector(2), continuous=1)
        actor = make_actor(spec, num_layers=6)
        size = 256 if minibatches == 1 else 64
        epochs = 1 if minibatches == 1 else 3
        cloning = make_cloning(actor, lesson(spec), strength=1000, batch_size=size, num_epoch=epochs)
        before = weights(actor)

        with pytest.raises(
            Diverged, match=r"Pretraining Loss exploded from 0\.\d+ to .* in minibatch \d+;"
        ) as diverged:
            cloning.update(0)

        assert diverged.value.minibatch in range(minibatches), "also what the last step did is told"
        np.testing.assert_array_equal(weights(actor), before)


class TestCloneRun:
    def test_every_pass_shows_every_step_once(self) -> None:
        spec = make_spec(vector(2), branches=(2,))
        clone = make_clone(lesson(spec, steps=72))  # minibatches of 32, 32 and 8

        seen = torch.cat([clone.draw() for _ in range(3)])

        assert sorted(seen.tolist()) == list(range(72))

    def test_the_normalizer_knows_the_demonstrations_from_the_beginning(self) -> None:
        spec = make_spec(vector(2), branches=(2,))
        seen = np.random.default_rng(1).normal(50, 10, (256, 2)).astype(np.float32)
        clone = make_clone(lesson(spec, observations=(seen,)), network={"normalize": True})

        normalizer = clone.actor.normalizer

        assert normalizer is not None
        torch.testing.assert_close(normalizer.mean.float(), torch.from_numpy(seen.mean(0)), rtol=0.01, atol=0.0)

    def test_after_iterations_were_taken_back_other_minibatches_are_met(self) -> None:
        clone = make_clone(lesson(make_spec(vector(2), branches=(2,))))  # 8 minibatches of 32
        clone.imitator.demonstrations.transitions.observations[0][17] = torch.nan

        def attempt() -> bool:
            try:
                clone.iterate(2)
            except Diverged:
                return False
            return True

        # Of each pass, four attempts, one meets the step that is spoiled.
        assert sorted(attempt() for _ in range(4)) == [False, True, True, True]
        assert clone.version == 6

    def test_a_linear_rate_ends_with_the_run(self) -> None:
        clone = make_clone(
            lesson(make_spec(vector(2), branches=(2,))),
            max_steps=10,
            hyperparameters={"learning_rate_schedule": "linear", "learning_rate": 1e-2},
        )

        rates = [clone.iterate()["Policy/Learning Rate"] for _ in range(10)]

        assert rates[0] == pytest.approx(1e-2)
        assert rates[-1] == pytest.approx(1e-3, rel=1e-3)
