"""Learning from a replay buffer, shown on SAC: what is drawn, when it is learned from, what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.heads import HEADS
from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import BehaviorSpec
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.learning.algorithms.off_policy_world import make_sac, make_sac_config, random_round, train
from tests.worker.learning.algorithms.test_sac import TWO_SIGNALS
from tests.worker.rollouts import equal_states, make_spec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.transitions import transitions_of
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.sac import SAC


@pytest.mark.parametrize(
    ("ending", "bootstraps"),
    [(SegmentEnd.TERMINATED, 0.0), (SegmentEnd.TRUNCATED, 0.9)],
    ids=["terminated", "truncated"],
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
