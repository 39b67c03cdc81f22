"""SAC's update: its gradient, what it bootstraps from, when it happens, what it reports and what it refuses."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.heads import HEADS
from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import BehaviorSpec
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.learning.algorithms.sac_world import (
    SPACES,
    make_sac,
    make_sac_config,
    random_round,
    reference_gradient,
    train,
)
from tests.worker.rollouts import make_spec
from worker.collectors.acting import POLICIES
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.transitions import transitions_of
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.off_policy import Batch
from worker.learning.algorithms.sac import SAC
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.soft_actor_critic import ModularCritics
from worker.trainer import checkpoint

TWO_SIGNALS = {
    "extrinsic": {"gamma": 0.9, "strength": 2.0},
    "curiosity": {"gamma": 0.8, "strength": 0.5, "network_settings": {"hidden_units": 8}},
}
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 8}}


def equal_states(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_states(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(equal_states(mine, its) for mine, its in zip(one, other, strict=True))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def next_batch(sac: SAC) -> tuple[Batch, torch.Tensor | None]:
    """The batch and the noise of the next gradient step, which draws them again."""
    state = sac.generator.get_state()
    batch = sac.experience.batch()
    noise = torch.randn(len(batch.rewards), sac.model.columns, generator=sac.generator) if sac.model.columns else None
    sac.generator.set_state(state)
    return batch, noise


def filled(spec: BehaviorSpec, *, memory_size: int = 0, masked: bool = False, **options: Any) -> SAC:
    """A learner that has learned a little."""
    sac = make_sac(spec, make_sac_config(**options))
    train(sac, spec, np.random.default_rng(1), 5, masked=masked, memory_size=memory_size)
    return sac


@pytest.mark.parametrize("signals", [None, TWO_SIGNALS], ids=["one-signal", "two-signals"])
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_gradient_by_hand_is_that_of_the_losses(
    continuous: int, branches: tuple[int, ...], masked: bool, signals: dict[str, Any] | None
) -> None:
    spec = make_spec(observations=(3, 2), continuous=continuous, branches=branches)
    sac = filled(spec, masked=masked, network={"normalize": True}, signals=signals)
    assert isinstance(sac.model.critics, StackedCritics)
    batch, noise = next_batch(sac)

    reference = reference_gradient(sac, batch, noise)
    with torch.no_grad():
        sac.take_step(sac.experience.batch(), 0.0)

    torch.testing.assert_close(sac.optimizer.gradient, reference, rtol=1e-3, atol=2e-5)
    assert float(reference.norm()) > 0.01


@pytest.mark.parametrize(
    ("observations", "network", "memory_size"),
    [((3,), MEMORY, 8), ((3, (1, 20, 20)), {}, 0), ((3, (4, 5)), {}, 0), ((3, (1, 20, 20)), MEMORY, 8)],
    ids=["memory", "picture", "entities", "picture-and-memory"],
)
@pytest.mark.parametrize(("continuous", "branches"), [SPACES[0], SPACES[2], SPACES[3]])
def test_automatic_gradient_is_that_of_the_losses(
    continuous: int,
    branches: tuple[int, ...],
    observations: tuple[Any, ...],
    network: dict[str, Any],
    memory_size: int,
) -> None:
    spec = make_spec(observations=observations, continuous=continuous, branches=branches)
    sac = filled(spec, memory_size=memory_size, network=network, masked=True)
    assert isinstance(sac.model.critics, ModularCritics)
    batch, noise = next_batch(sac)

    reference = reference_gradient(sac, batch, noise)
    with torch.no_grad():
        sac.take_step(sac.experience.batch(), 0.0)

    torch.testing.assert_close(sac.optimizer.gradient, reference, rtol=1e-3, atol=2e-5)


def test_the_target_starts_as_v_and_moves_by_tau() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, tau=0.25, learning_rate=1e-2)
    critics = sac.model.critics
    start = [part.clone() for part in critics.target]
    assert all(torch.equal(part, source) for part, source in zip(critics.target, critics.views().v, strict=True))

    train(sac, spec, np.random.default_rng(2), 1, rewards=np.ones(16))
    updates = sac.experience.updates

    assert updates == 4
    first = [
        before + (1 - 0.75**updates) * (after - before) for before, after in zip(start, critics.views().v, strict=True)
    ]
    moved = sum(float((part - before).norm()) for part, before in zip(critics.target, start, strict=True))
    whole = sum(float((part - before).norm()) for part, before in zip(first, start, strict=True))
    assert 0 < moved < whole, "it lags behind one that always had V's present weights"


def test_recurrent_padding_has_no_influence() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = filled(spec, memory_size=8, network=MEMORY, tau=1e-9)
    batch, _ = next_batch(sac)
    padding = batch.weight[:, :1] == 0
    assert 0 < int(padding.sum()) < len(padding)
    others = batch._replace(
        rewards=torch.where(padding, 1e6, batch.rewards), continuous=torch.where(padding, -0.9, batch.continuous)
    )

    gradients = []
    for one in (batch, others):
        sac.generator.manual_seed(3)
        with torch.no_grad():
            sac.take_step(one, 0.0)  # what was padded pays a million
        gradients.append(sac.optimizer.gradient.clone())

    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("ending", "bootstraps"),
    [(SegmentEnd.TERMINATED, 0.0), (SegmentEnd.TRUNCATED, 0.9), (SegmentEnd.CUT, 0.9)],
    ids=["terminated", "truncated", "cut"],
)
def test_what_a_step_bootstraps_from(ending: SegmentEnd, bootstraps: float) -> None:
    spec = make_spec(observations=(1,), continuous=1)
    sac = make_sac(spec, batch_size=8)
    seen, behind = np.full((16, 1), 1.0), np.full((16, 1), 7.0)
    sac.experience.store(
        random_round(
            spec,
            np.random.default_rng(1),
            lengths=[1] * 16,
            observations=[seen],
            next_observations=[behind],
            ending=ending,
        )
    )

    batch = sac.experience.batch()

    assert batch.discounts.unique().tolist() == pytest.approx([bootstraps])
    assert batch.following[0].unique().tolist() == [7.0], "the observation that the episode ended on"


def test_signals_have_their_own_strength_gamma_and_end() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS))
    rng = np.random.default_rng(1)
    sac.experience.store(random_round(spec, rng, lengths=[40], ending=SegmentEnd.CUT))
    sac.experience.store(random_round(spec, rng, lengths=[1] * 40, ending=SegmentEnd.TERMINATED, rewards=np.ones(40)))

    batch = sac.experience.batch()
    ended = batch.discounts[:, 0] == 0
    assert 0 < int(ended.sum()) < 16

    assert sac.signals.names == ("extrinsic", "curiosity")
    assert batch.rewards[ended, 0].unique().tolist() == [2.0], "1 times its strength"
    assert batch.discounts[ended].unique(dim=0).tolist() == [[0.0, pytest.approx(0.8)]], "curiosity knows no end"
    assert batch.rewards.shape == (16, 2)


@pytest.mark.parametrize("memory", [None, {"sequence_length": 4, "memory_size": 4}], ids=["plain", "LSTM"])
def test_beyond_a_termination_curiosity_expects_what_episodes_begin_with(memory: dict[str, Any] | None) -> None:
    spec = make_spec(observations=(1,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS, network={"memory": memory} if memory else {}))
    columns = {"lengths": [1] * 16, "memory_size": 4 if memory else 0}
    begun, behind = np.full((16, 1), 2.0), np.full((16, 1), 7.0)
    sac.experience.store(
        random_round(
            spec,
            np.random.default_rng(1),
            observations=[begun],
            next_observations=[behind],
            ending=SegmentEnd.TERMINATED,
            **columns,
        )
    )

    batch = sac.experience.batch()
    values = sac.following_values(batch)

    beginning = sac.model.critics.initial_values([torch.tensor([[2.0]])])[0]
    terminal = sac.model.critics.target_values(batch.encoded, batch.following, batch.length)[:, 1]
    assert not torch.isclose(terminal, beginning[1]).any(), "which would show nothing"
    torch.testing.assert_close(values[:, 1], beginning[1].expand(len(values)))
    assert batch.discounts.unique(dim=0).tolist() == [[0.0, pytest.approx(0.8)]], "the task itself ended there"


def test_only_so_many_beginnings_of_episodes_are_kept_the_newest() -> None:
    spec = make_spec(observations=(1,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS))
    for first in range(100):
        rollout = random_round(
            spec, np.random.default_rng(1), lengths=[1], observations=[np.full((1, 1), float(first))], episodes=[first]
        )
        sac.experience.store(rollout)

    assert sac.experience.beginnings[0].flatten().tolist() == [float(first) for first in range(36, 100)]


def test_rewards_of_a_batch_are_those_of_the_signals_of_the_moment() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS, reward_signal_steps_per_update=1.0))
    sac.experience.store(random_round(spec, np.random.default_rng(1), lengths=[16]))
    state = sac.generator.get_state()

    before = sac.experience.batch().rewards
    sac.signals.update(sac.experience.real_transitions())
    sac.generator.set_state(state)
    after = sac.experience.batch().rewards

    assert torch.equal(before[:, 0], after[:, 0])
    assert float(before[:, 1].abs().max()) == 0.0, "before its first update curiosity pays nothing"
    assert float(after[:, 1].min()) > 0.0


@pytest.mark.parametrize(
    ("steps_per_update", "expected"), [(10.0, [1, 3, 4, 6]), (16.0, [1, 2, 3, 4]), (0.5, [32, 64, 96, 128])]
)
def test_gradient_steps_keep_to_their_rate(steps_per_update: float, expected: list[int]) -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, steps_per_update=steps_per_update)

    done = []
    for _ in range(4):  # rounds of 16 steps
        train(sac, spec, np.random.default_rng(1), 1)
        done.append(sac.experience.updates)

    assert done == expected


def test_nothing_is_learnt_before_the_buffer_holds_a_batch_and_the_first_steps_are_over() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    small = make_sac(spec, batch_size=33)
    patient = make_sac(spec, buffer_init_steps=40)
    rng = np.random.default_rng(1)

    for round_number in (1, 2):
        for sac in (small, patient):
            assert sac.update(random_round(spec, rng), round_number * 16) is None
            assert sac.version == 0
    weights = patient.flat_weights()

    assert small.update(random_round(spec, rng), 48) is not None
    assert small.experience.updates == 12, "those of the first 32 steps are made up for"
    assert patient.update(random_round(spec, rng), 48) is not None
    assert patient.experience.updates == 2, "counted from step 40 on: 8 / 4"
    assert patient.version == 1
    assert not np.array_equal(weights, patient.flat_weights())


def test_reward_signals_have_a_rate_of_their_own() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS, steps_per_update=16, reward_signal_steps_per_update=4))

    metrics = train(sac, spec, np.random.default_rng(1), 2)

    assert (sac.experience.updates, sac.experience.signal_updates) == (2, 8)
    assert metrics["Losses/Curiosity Forward Loss"] > 0


def test_rounds_fill_the_buffer_then_ask_for_one_gradient_step_but_a_step_of_every_agent() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, steps_per_update=4, batch_size=40, buffer_init_steps=0)
    assert sac.round_steps() == 40

    train(sac, spec, np.random.default_rng(1), 1)
    assert sac.round_steps() == 24
    train(sac, spec, np.random.default_rng(1), 2)
    assert sac.round_steps() == 4, "three agents need no more than that"

    crowd = random_round(spec, np.random.default_rng(1), lengths=[1] * 12)
    sac.update(crowd, 60)
    assert sac.round_steps() == 12


def test_the_rate_of_signals_that_learn_nothing_makes_no_round_shorter() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    rates = {"steps_per_update": 8.0, "reward_signal_steps_per_update": 2.0}

    asked = []
    for signals in (None, TWO_SIGNALS):
        sac = make_sac(spec, make_sac_config(signals=signals, **rates))
        sac.update(random_round(spec, np.random.default_rng(1), lengths=[16]), 16)
        asked.append(sac.round_steps())

    assert asked == [8, 2]


def test_rounds_before_the_first_update_are_bounded() -> None:
    sac = make_sac(buffer_init_steps=50_000)

    assert sac.round_steps() == 1024


def test_coefficients_rise_where_entropy_is_below_its_target_and_fall_above() -> None:
    # A squashed column whose sigma is 1 has an entropy near 0.4 nats, above its target of -1. An even branch has ln 3,
    # above 0.2 ln 3.
    spec = make_spec(observations=(3,), continuous=1, branches=(3,))
    sac = make_sac(spec, init_entcoef=0.5)
    train(sac, spec, np.random.default_rng(1), 1)
    assert bool((sac.model.log_coefficients < math.log(0.5)).all())

    sac.model.target_entropies += 10.0
    before = sac.model.log_coefficients.detach().clone()
    train(sac, spec, np.random.default_rng(1), 20)

    assert bool((sac.model.log_coefficients > before).all())


def test_target_entropies_are_those_of_ml_agents() -> None:
    sac = make_sac(make_spec(continuous=3, branches=(4, 2)))

    targets = [0.2 * math.log(4), 0.2 * math.log(2), -3.0]
    assert sac.model.target_entropies.tolist() == pytest.approx(targets)


def test_metrics_have_ml_agents_names() -> None:
    spec = make_spec(observations=(3,), continuous=1, branches=(3, 2))
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS))

    metrics = train(sac, spec, np.random.default_rng(1), 1)

    assert set(metrics) == {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Losses/Q1 Loss",
        "Losses/Q2 Loss",
        "Losses/Policy Gradient Norm",
        "Losses/Critic Gradient Norm",
        "Losses/Curiosity Forward Loss",
        "Losses/Curiosity Inverse Loss",
        "Policy/Extrinsic Value",
        "Policy/Curiosity Value",
        "Policy/Curiosity Reward",
        "Policy/Entropy",
        "Policy/Continuous Entropy",
        "Policy/Discrete Entropy",
        "Policy/Branch 0 Entropy",
        "Policy/Branch 1 Entropy",
        "Policy/Continuous Entropy Coeff",
        "Policy/Discrete Entropy Coeff",
        "Policy/Learning Rate",
        "Policy/Lag",
    }


def test_what_whole_episodes_earned_from_a_signal_is_reported_once() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS))
    rng = np.random.default_rng(1)
    halves = [
        random_round(spec, rng, lengths=[16], ending=ending, sequences=[index])
        for index, ending in enumerate((SegmentEnd.CUT, SegmentEnd.TRUNCATED))
    ]

    first = sac.update(halves[0], 16)
    assert first is not None
    (open_sums,) = sac.state_dict()["episodes"]["sums"].tolist()
    rewards = sac.signals.evaluate(transitions_of(halves[1], "cpu", HEADS["squashed"]))
    expected = open_sums[1] + float(rewards[:, 1].sum())
    second = sac.update(halves[1], 32)
    third = sac.update(random_round(spec, rng, lengths=[16], ending=SegmentEnd.CUT, episodes=[1]), 48)

    assert second is not None
    assert third is not None
    assert "Policy/Curiosity Reward" not in first
    assert second["Policy/Curiosity Reward"] == pytest.approx(expected, rel=1e-5)
    assert "Policy/Curiosity Reward" not in third
    assert "Policy/Extrinsic Reward" not in second, "the recorder has it from the episodes themselves"


def test_metrics_of_what_a_behavior_lacks_are_left_out() -> None:
    columns = train(make_sac(make_spec(continuous=1)), make_spec(continuous=1), np.random.default_rng(1), 1)
    branches = train(make_sac(make_spec(branches=(2,))), make_spec(branches=(2,)), np.random.default_rng(1), 1)

    assert not [name for name in columns if "Discrete" in name]
    assert not [name for name in branches if "Continuous" in name]


def test_metrics_are_what_they_are_called() -> None:
    spec = make_spec(observations=(3,), branches=(3, 2))
    sac = make_sac(spec, learning_rate=1e-9, init_entcoef=0.25, steps_per_update=16)
    with torch.no_grad():
        sac.actor.head.weight.zero_()

    metrics = train(sac, spec, np.random.default_rng(1), 1)

    assert metrics["Policy/Entropy"] == pytest.approx(math.log(3) + math.log(2), rel=1e-4)
    assert metrics["Policy/Discrete Entropy Coeff"] == pytest.approx(0.25, rel=1e-4)
    assert metrics["Policy/Learning Rate"] == 1e-9
    assert metrics["Policy/Lag"] == 0.0


def test_learning_rate_follows_its_schedule() -> None:
    sac = make_sac(make_spec(continuous=1), learning_rate_schedule="linear", learning_rate=0.01, max_steps=32)

    metrics = train(sac, make_spec(continuous=1), np.random.default_rng(1), 1)

    assert metrics["Policy/Learning Rate"] == pytest.approx(0.005)


def test_policy_lag_counts_versions_behind() -> None:
    spec = make_spec(continuous=1)
    sac = make_sac(spec)
    train(sac, spec, np.random.default_rng(1), 3)

    metrics = sac.update(random_round(spec, np.random.default_rng(1), version=1), 64)

    assert metrics is not None
    assert metrics["Policy/Lag"] == 2.0
    assert sac.version == 4


def test_the_normalizer_merges_each_round_before_it_is_learnt_from() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, network={"normalize": True})
    rollout = random_round(spec, np.random.default_rng(1))

    sac.update(rollout, 16)

    assert sac.actor.normalizer is not None
    torch.testing.assert_close(sac.actor.normalizer.mean, rollout.observations[0].double().sum(0) / 17)


@pytest.mark.parametrize(
    ("column", "named"),
    [("observations", "observations 0"), ("next_observations", "next observations 0"), ("rewards", "rewards")],
)
def test_a_round_that_is_not_finite_is_named_and_not_stored(column: str, named: str) -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec)
    train(sac, spec, np.random.default_rng(1), 1)
    rollout = random_round(spec, np.random.default_rng(2))
    tensor = getattr(rollout, column)
    (tensor[0] if isinstance(tensor, list) else tensor).view(-1)[1] = torch.nan
    before = sac.state_dict()

    with pytest.raises(Diverged) as diverged:
        sac.update(rollout, 32)

    assert diverged.value.tensor == named
    assert len(sac.experience.replay) == 16
    assert equal_states(before, sac.state_dict())


@pytest.mark.parametrize("signals", [None, TWO_SIGNALS], ids=["plain", "with-curiosity"])
def test_an_exploding_loss_is_named_and_the_update_taken_back(signals: dict[str, Any] | None) -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=signals))
    train(sac, spec, np.random.default_rng(1), 2)
    before = sac.state_dict()

    with pytest.raises(Diverged) as diverged:  # (1e25)^2 is past float32
        sac.update(random_round(spec, np.random.default_rng(2), rewards=np.full(16, 1e25)), 48)

    assert diverged.value.tensor in {"Losses/Q1 Loss", "Losses/Critic Gradient Norm"}
    after = sac.state_dict()
    for name in ("actor", "critics", "log_coefficients", "optimizer", "signals", "version"):
        assert equal_states(before[name], after[name]), name
    assert sac.experience.updates == before["counters"][1], "the gradient steps are still due"


def test_values_that_grow_a_million_fold_are_named() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec)
    train(sac, spec, np.random.default_rng(1), 2)
    with torch.no_grad():
        sac.model.critics.views().v[-1].fill_(1e7)  # its last bias

    with pytest.raises(Diverged, match="value of extrinsic exploded from"):
        train(sac, spec, np.random.default_rng(2), 1)


def make_curious(**rates: float) -> tuple[SAC, BehaviorSpec]:
    """SAC with RND that learns too fast but is worth next to nothing."""
    spec = make_spec(observations=(3,), continuous=1)
    rnd = {"learning_rate": 1.0, "strength": 1e-12, "network_settings": {"num_layers": 6, "hidden_units": 64}}
    return make_sac(spec, make_sac_config(signals={"extrinsic": {"gamma": 0.9}, "rnd": rnd}, **rates)), spec


def make_imitating() -> tuple[SAC, BehaviorSpec, DemonstrationBuffer]:
    """SAC beside behavioral cloning."""
    spec = make_spec(observations=(3,), continuous=1)
    expert = DemonstrationBuffer([make_demonstration(spec, lengths=(32,))], spec)
    return make_sac(spec, make_sac_config(cloning={"demo_path": "there"}), expert=expert), spec, expert


@pytest.mark.parametrize("steps", [4, 1], ids=["within-an-update", "from-one-to-the-next"])
def test_a_signal_whose_loss_explodes_is_named_with_both_sizes(steps: int) -> None:
    sac, spec = make_curious(reward_signal_steps_per_update=16 / steps)  # of rounds of 16

    with pytest.raises(Diverged, match=r"Losses/RND Loss exploded from \d+\.\d+ to .*e\+\d+ in minibatch \d;"):
        train(sac, spec, np.random.default_rng(1), 2)

    assert sac.version == (0 if steps == 4 else 1)


def test_imitation_that_explodes_is_named_and_the_update_taken_back() -> None:
    sac, spec, expert = make_imitating()
    train(sac, spec, np.random.default_rng(1), 1)
    before = sac.state_dict()
    expert.transitions.continuous.fill_(1e5)  # the loss is 1e10, the weights are sound

    with pytest.raises(Diverged, match=r"Losses/Pretraining Loss exploded from 0\.\d+ to 1e\+10 in minibatch 0;"):
        train(sac, spec, np.random.default_rng(2), 1)

    after = sac.state_dict()
    for name in ("actor", "critics", "optimizer", "losses_before", "version"):
        assert equal_states(before[name], after[name]), name


def test_a_large_loss_is_no_explosion_if_it_begins_so() -> None:
    sac, spec, expert = make_imitating()
    expert.transitions.continuous.fill_(1e5)

    metrics = train(sac, spec, np.random.default_rng(1), 3)

    assert metrics["Losses/Pretraining Loss"] == pytest.approx(1e10, rel=0.01)


def test_learning_goes_on_after_an_update_was_taken_back() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec)
    train(sac, spec, np.random.default_rng(1), 2)
    rollout = random_round(spec, np.random.default_rng(2), rewards=np.full(16, np.inf))
    with pytest.raises(Diverged):
        sac.update(rollout, 48)

    metrics = sac.update(random_round(spec, np.random.default_rng(3)), 64)

    assert metrics is not None
    assert np.isfinite(list(metrics.values())).all()


RESUMED = [
    pytest.param(make_spec(observations=(3,), continuous=2), {"network": {"normalize": True}}, 0, id="plain"),
    pytest.param(make_spec(observations=(3,), continuous=1, branches=(3,)), {"signals": TWO_SIGNALS}, 0, id="hybrid"),
    pytest.param(make_spec(observations=(3,), branches=(3,)), {"network": MEMORY}, 8, id="memory"),
    pytest.param(make_spec(observations=((1, 20, 20),), continuous=1), {}, 0, id="picture"),
]


@pytest.mark.parametrize(("spec", "options", "memory_size"), RESUMED)
def test_training_goes_on_from_a_checkpoint_bit_for_bit(
    tmp_path: Path, spec: BehaviorSpec, options: dict[str, Any], memory_size: int
) -> None:
    config = make_sac_config(save_replay_buffer=True, **options)
    through, rng = make_sac(spec, config), np.random.default_rng(19)
    train(through, spec, rng, 6, memory_size=memory_size)

    first, rng = make_sac(spec, config), np.random.default_rng(19)
    train(first, spec, rng, 3, memory_size=memory_size)
    checkpoint.save(tmp_path, {"sac": first.state_dict()})
    second = make_sac(spec, config, seed=77)
    second.load_state_dict(checkpoint.load(tmp_path)["sac"])
    assert len(second.experience.replay) == len(first.experience.replay) == 48
    train(second, spec, rng, 3, memory_size=memory_size)

    assert equal_states(through.state_dict(), second.state_dict())
    assert second.round_steps() == through.round_steps()


def test_without_a_saved_buffer_a_resumed_run_fills_a_new_one() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    first = make_sac(spec, batch_size=20)
    train(first, spec, np.random.default_rng(1), 3)
    state = first.state_dict()
    assert state["replay"] is None
    second = make_sac(spec, batch_size=20, seed=5)
    second.load_state_dict(state)

    assert second.update(random_round(spec, np.random.default_rng(2)), 64) is None
    assert second.update(random_round(spec, np.random.default_rng(2)), 80) is not None
    assert second.experience.updates == 20, "the rate counts all steps of the run"


def test_equal_seeds_give_equal_weights_and_others_others() -> None:
    spec = make_spec(observations=(3,), continuous=1, branches=(2,))
    states = []
    for seed in (1, 1, 2):
        sac = make_sac(spec, seed=seed)
        train(sac, spec, np.random.default_rng(18), 3)
        states.append(sac.state_dict())

    assert equal_states(states[0], states[1])
    assert not equal_states(states[0], states[2])


def test_weights_are_as_collectors_load_them() -> None:
    spec = make_spec(observations=(3,), continuous=2, branches=(2,))
    sac = make_sac(spec, network={"normalize": True})
    train(sac, spec, np.random.default_rng(1), 2)
    policy = POLICIES.policy(spec, sac.config.network_settings, head="squashed")

    policy.load(sac.flat_weights())
    acted = policy.act([np.zeros((5, 3), np.float32)], None, None, np.random.default_rng(1))

    assert acted.continuous_env.shape == (5, 2)
    assert np.array_equal(acted.continuous_env, acted.continuous_sample)
    assert float(np.abs(acted.continuous_env).max()) < 1.0
