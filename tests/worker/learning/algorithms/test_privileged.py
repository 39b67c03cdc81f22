"""Observations that only the critic sees: values know them, the policy does not depend on them in any way."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.protocol.batches import Array
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.toys.drills import Drill, one_hot
from tests.toys.playing import training
from tests.worker.learning.algorithms.test_poca import make_poca
from tests.worker.learning.networks.kinds import ENTITIES, privileged
from tests.worker.rollouts import equal_states, make_config, make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.learning.algorithms.poca import POCA
from worker.learning.algorithms.ppo import PPO

CPU, PICTURE = torch.device("cpu"), (3, 8, 8)
BOTH: dict[str, Any] = {"continuous": 2, "branches": (3,)}
VECTORS = make_spec(observations=(2, 3, 4), **BOTH), privileged("vector 1")
EVERYTHING = (
    make_spec(observations=(2, PICTURE, 3, (2, 8, 8), ENTITIES, (4, 2)), **BOTH),
    {"vis_encode_type": "fully_connected", **privileged("vector 0", "image 1", "entities 5")},
)
ONLY_PICTURE = (
    make_spec(observations=(2, PICTURE), **BOTH),
    {"vis_encode_type": "fully_connected", **privileged("image 1")},
)
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 8}}
FORMS = {
    "vectors": VECTORS,
    "everything": EVERYTHING,
    "only a picture": ONLY_PICTURE,
    "vectors, memory": (VECTORS[0], VECTORS[1] | MEMORY),
    "everything, memory": (EVERYTHING[0], EVERYTHING[1] | MEMORY),
}
LENGTHS = (5, 3, 8, 1, 7)


def build(trainer: str, form: str, **hyper: Any) -> tuple[PPO | POCA, BehaviorSpec, list[int]]:
    """A learner, its behavior, and the indices of what only the critic sees."""
    spec, network = FORMS[form]
    network = {"normalize": True, "hidden_units": 16, "num_layers": 1, **network}
    hyper = {"batch_size": 8, "buffer_size": 24, "num_epoch": 2, "learning_rate": 1e-2, **hyper}
    hidden = [index for index, part in enumerate(spec.observations) if part.name in network["privileged_observations"]]
    if trainer == "poca":
        return make_poca(spec, network=network, **hyper), spec, hidden
    return PPO(make_config(network=network, **hyper), spec, CPU, seed=1), spec, hidden


def play(algorithm: PPO | POCA, spec: BehaviorSpec, seed: int = 1) -> Rollout:
    rollout = random_rollout(
        spec, LENGTHS, np.random.default_rng(seed), memory_size=algorithm.actor.memory_size, group_size=2
    )
    return replace(rollout, versions=torch.full_like(rollout.versions, algorithm.version))


def otherwise(rollout: Rollout, indices: list[int]) -> Rollout:
    """The same rollout, in which these observations are others."""

    def changed(parts: list[Tensor]) -> list[Tensor]:
        return [
            (255 - part if part.dtype == torch.uint8 else part + 1.5) if i in indices else part
            for i, part in enumerate(parts)
        ]

    return replace(
        rollout,
        observations=changed(rollout.observations),
        next_observations=changed(rollout.next_observations),
    )


CASES = [(trainer, form) for trainer in ("ppo", "poca") for form in FORMS]


@pytest.mark.parametrize(("trainer", "form"), CASES)
@torch.no_grad()
def test_another_privileged_observation_changes_the_values_and_nothing_of_the_policy(trainer: str, form: str) -> None:
    algorithm, spec, hidden = build(trainer, form)
    for seed in range(2):  # weights and statistics have moved
        algorithm.update(play(algorithm, spec, seed), step=0)
    rollout = play(algorithm, spec, 5)
    memory = rollout.memories

    acted, values = [], []
    for played in (rollout, otherwise(rollout, hidden)):
        encoded = algorithm.encode(played.observations)
        acted.append(algorithm.actor(encoded, memory)[0])
        assert torch.equal(acted[-1], algorithm.actor(algorithm.actor.encode(played.observations), memory)[0])
        values.append(algorithm.prepare(played).batch.values)

    assert torch.equal(*acted)
    assert float((values[0] - values[1]).abs().min()) > 0.0


@pytest.mark.parametrize(("trainer", "form"), CASES)
def test_the_gradient_of_the_policy_by_a_privileged_observation_is_none(trainer: str, form: str) -> None:
    algorithm, spec, hidden = build(trainer, form)
    rollout = play(algorithm, spec)
    parts = [part.float().requires_grad_() for part in algorithm.encode(rollout.observations)]
    shown = len(algorithm.actor.encode(rollout.observations))

    head, _ = algorithm.actor(parts, rollout.memories)
    gradients = torch.autograd.grad(head.sum(), parts, allow_unused=True)

    assert len(parts) > shown
    assert all(gradient is None for gradient in gradients[shown:])
    assert all(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in gradients[:shown])
    assert not {spec.observations[index].name for index in hidden} & {
        algorithm.actor.layout.body.observations[index].name for index in algorithm.actor.layout.body.seen
    }


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_value_loss_moves_no_weight_of_the_policy(form: str) -> None:
    algorithm, spec, _ = build("ppo", form, beta=0.0, num_epoch=1)
    rollout = play(algorithm, spec)
    assert isinstance(algorithm, PPO)
    before = {name: weight.clone() for name, weight in algorithm.model.named_parameters()}
    experience = algorithm.prepare(rollout)
    nothing = replace(experience.batch, advantage=torch.zeros_like(experience.batch.advantage))
    algorithm.optimizer.zero_gradient()

    minibatch = next(iter(algorithm.minibatches(replace(experience, batch=nothing))))
    algorithm.differentiate(experience, minibatch, algorithm.rates(0))

    gradients = {name: weight.grad for name, weight in algorithm.model.named_parameters() if weight.numel()}
    assert before.keys() >= gradients.keys()
    assert all(
        bool((gradient.abs().sum() > 0) == name.startswith("critic.heads"))
        for name, gradient in gradients.items()
        if gradient is not None and (name.startswith(("actor.", "critic.heads")))
    )


@pytest.mark.parametrize(("trainer", "form"), CASES)
def test_statistics_of_privileged_observations_are_kept_apart_and_not_published(trainer: str, form: str) -> None:
    algorithm, spec, hidden = build(trainer, form)
    vectors = [index for index in hidden if len(spec.observations[index].shape) == 1]
    rollout = play(algorithm, spec)

    algorithm.update(rollout, step=0)

    statistics = algorithm.privileged.normalizer
    assert (statistics is not None) == bool(vectors)
    if statistics is not None:
        raw = torch.cat([rollout.observations[index] for index in vectors], 1).double()
        torch.testing.assert_close(statistics.mean, raw.sum(0) / (len(raw) + 1))
    assert algorithm.flat_weights().size == algorithm.actor.flat_size
    sizes = [spec.observations[index].size for index in range(len(spec.observations)) if index not in hidden]
    shown = [size for index, size in enumerate(sizes) if size < 5]
    normalizer = algorithm.actor.normalizer
    assert normalizer is not None
    assert normalizer.mean.numel() == sum(shown)


@pytest.mark.parametrize(("trainer", "form"), CASES)
def test_learning_goes_on_exactly_from_a_saved_state(trainer: str, form: str) -> None:
    algorithm, spec, _ = build(trainer, form)
    algorithm.update(play(algorithm, spec, 1), step=0)
    saved = algorithm.state_dict()
    again, _, _ = build(trainer, form)
    again.load_state_dict(saved)

    rollout = play(algorithm, spec, 2)
    measured = [each.update(rollout, step=24) for each in (algorithm, again)]

    assert measured[0] == measured[1]
    assert equal_states(algorithm.state_dict(), again.state_dict())


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_without_the_key_weights_and_states_are_what_they_were(trainer: str) -> None:
    spec = VECTORS[0]
    if trainer == "poca":
        model = make_poca(spec, network={"normalize": True}).model
    else:
        model = PPO(make_config(network={"normalize": True}), spec, CPU, seed=1).model

    assert not [name for name in model.state_dict() if "privileged" in name]


@pytest.mark.parametrize(
    ("form", "by_hand"),
    [("vectors", True), ("everything", False), ("only a picture", False), ("vectors, memory", False)],
)
def test_gradients_are_autograds_where_the_critic_sees_more_than_vectors(form: str, by_hand: bool) -> None:
    algorithm, _, _ = build("ppo", form)
    assert isinstance(algorithm, PPO)

    assert algorithm._by_hand == by_hand


class Weather(Drill):
    """Repeat the cue, at each of four steps. Half of the episodes have a storm, which costs 2 a step, whatever is done.

    Best: 4 less 4 on average. A critic that does not see the weather cannot know what an episode is worth.
    """

    name = "Weather"
    length = 4

    def __init__(self, *, shown: bool, agents: int = 128, seed: int = 1) -> None:
        observations = [ObservationSpec((1,), "weather"), ObservationSpec((3,), "cue")]
        super().__init__(observations, ActionSpec(0, (3,)), agents, seed)
        self.weather_is_shown = shown

    def deal(self) -> None:
        self.storm = self.rng.integers(0, 2, self.agents)

    def see(self) -> tuple[Array, ...]:
        self.cue = self.rng.integers(0, 3, self.agents)
        weather = (self.storm * self.weather_is_shown).astype(np.float32)
        return weather[:, None], one_hot(self.cue, 3)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        return (discrete[:, 0] == self.cue).astype(np.float32) - 2.0 * self.storm


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "memory"),
    [("ppo", None), ("poca", None), ("ppo", {"sequence_length": 4, "memory_size": 16})],
    ids=["ppo", "poca", "ppo-memory"],
)
def test_values_that_know_what_decides_the_return_are_closer_to_it(trainer: str, memory: dict[str, int] | None) -> None:
    losses, gained = {}, {}
    for shown in (True, False):
        network = {**privileged("weather"), "memory": memory}
        hyper = {"buffer_size": 512, "batch_size": 64, "num_epoch": 4, "learning_rate": 5e-3}
        run = training(Weather(shown=shown), trainer=trainer, network=network, gamma=0.9, **hyper)
        scores = run.run(20)
        losses[shown], gained[shown] = run.metrics["Losses/Value Loss"], scores[-1] - scores[0]

    # Storm or not are returns of -2 (1 + 0.9 + ...) apart, which the first value of an episode at least cannot know.
    assert losses[True] < 0.25 * losses[False]
    assert gained[True] > 1.5, "the policy, which never sees it, learns all the same"
