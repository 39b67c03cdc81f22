"""Rewards in units of their discounted return's deviation: Gymnasium's numbers, however steps are cut into rounds."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import PPOConfig
from ludus.config.rewards import RewardSignals
from tests.examples import examples
from tests.worker.learning.algorithms.off_policy_world import make_sac_config, random_round
from tests.worker.learning.algorithms.test_poca import make_poca
from tests.worker.rollouts import equal_states, make_rollout, make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.experience.transitions import transitions_of
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.poca import POCA
from worker.learning.algorithms.ppo import PPO
from worker.learning.algorithms.sac import SAC
from worker.learning.build import Demonstrations, build_algorithm, build_signals
from worker.learning.rewards.scale import LIMIT, RewardScale

CPU = torch.device("cpu")
CUT, TERMINATED, TRUNCATED = SegmentEnd.CUT, SegmentEnd.TERMINATED, SegmentEnd.TRUNCATED
SPEC = make_spec(observations=(3,), continuous=1)


class Recorded(gymnasium.Env[np.ndarray, int]):
    """Plays rewards and ends of episodes from a record."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, record: list[tuple[float, SegmentEnd]]) -> None:
        self.steps = iter(record)

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, end = next(self.steps)
        return np.zeros(1, np.float32), reward, end is TERMINATED, end is TRUNCATED, {}


def gymnasiums(records: list[list[tuple[float, SegmentEnd]]], gamma: float) -> NormalizeReward:
    """Gymnasium's wrapper after it has played environments of one length."""
    environments = [lambda record=record: Recorded(record) for record in records]
    wrapped = NormalizeReward(SyncVectorEnv(environments, autoreset_mode=AutoresetMode.SAME_STEP), gamma=gamma)
    wrapped.reset()
    for _ in records[0]:
        wrapped.step(np.zeros(len(records), np.int64))
    return wrapped


def rounds_of(
    records: list[list[tuple[float, SegmentEnd]]], cuts: list[int], horizon: int, rng: np.random.Generator
) -> Iterator[Rollout]:
    """The same steps as rounds that end at `cuts`, in segments of at most `horizon` steps and in any order."""
    episodes, places = [0] * len(records), [0] * len(records)
    for first, last in zip([0, *cuts], [*cuts, len(records[0])], strict=True):
        segments: list[tuple[int, int, int, SegmentEnd, list[float]]] = []
        for agent, record in enumerate(records):
            rewards: list[float] = []
            for number, (reward, end) in enumerate(record[first:last], first + 1):
                rewards.append(reward)
                if end is not CUT or len(rewards) == horizon or number == last:
                    segments.append((agent, episodes[agent], places[agent], end, rewards))
                    places[agent], rewards = (places[agent] + 1, []) if end is CUT else (0, [])
                    episodes[agent] += end is not CUT
        order = rng.permutation(len(segments))
        agents, numbers, places_of, ends, parts = zip(*(segments[index] for index in order), strict=True)
        rewards = [reward for part in parts for reward in part]
        yield make_rollout(
            observations=[np.zeros((len(rewards), 3))],
            rewards=np.array(rewards),
            continuous=np.zeros((len(rewards), 1)),
            log_probs=np.zeros((len(rewards), 1)),
            lengths=[len(part) for part in parts],
            ending=ends,
            agents=[agent // 2 for agent in agents],
            simulators=[agent % 2 for agent in agents],
            episodes=numbers,
            sequences=places_of,
        )


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[list[tuple[float, SegmentEnd]]], list[int], int, float, int]:
    """Records of some environments, where rounds end, the longest segment, gamma and a seed."""
    steps, rng = draw(st.integers(2, 40)), np.random.default_rng(draw(st.integers(0, 2**16)))
    ends = [CUT, CUT, CUT, TERMINATED, TRUNCATED]
    records = [
        [(float(rng.normal(1.0, 3.0)), ends[rng.integers(len(ends))]) for _ in range(steps)]
        for _ in range(draw(st.integers(1, 4)))
    ]
    cuts = sorted(draw(st.sets(st.integers(1, steps - 1), max_size=3)))
    return records, cuts, draw(st.integers(1, 7)), draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])), int(rng.integers(99))


@settings(max_examples=examples(40), deadline=None)
@given(streams())
def test_statistics_are_gymnasiums_however_steps_are_cut_into_segments_and_rounds(
    stream: tuple[list[list[tuple[float, SegmentEnd]]], list[int], int, float, int],
) -> None:
    records, cuts, horizon, gamma, seed = stream
    scale = RewardScale(gamma, CPU)

    for rollout in rounds_of(records, cuts, horizon, np.random.default_rng(seed)):
        scale.observe(rollout, rollout.rewards)

    expected = gymnasiums(records, gamma)
    statistics = scale.statistics
    assert float(statistics.count) == pytest.approx(expected.return_rms.count)
    assert float(statistics.mean) == pytest.approx(float(expected.return_rms.mean), rel=1e-4, abs=1e-4)
    assert float(statistics.std()) ** 2 == pytest.approx(float(expected.return_rms.var), rel=1e-4)
    rewards = torch.tensor([0.5, -1.25])
    divided = rewards.numpy() / np.sqrt(expected.return_rms.var + expected.epsilon)
    np.testing.assert_allclose(scale.scaled(rewards).numpy(), divided.clip(-LIMIT, LIMIT), rtol=1e-4)


def test_it_goes_on_exactly_from_a_saved_state_in_the_middle_of_episodes() -> None:
    rng = np.random.default_rng(3)
    records = [[(float(rng.normal()), TERMINATED if step % 9 == 8 else CUT) for step in range(30)] for _ in range(3)]
    rounds = list(rounds_of(records, [10, 20], 4, rng))
    scale, again = RewardScale(0.9, CPU), RewardScale(0.9, CPU)
    for rollout in rounds[:2]:
        scale.observe(rollout, rollout.rewards)

    state = scale.state_dict()
    again.load_state_dict({**state, "episodes": json.loads(json.dumps(state["episodes"]))})
    for each in (scale, again):
        each.observe(rounds[2], rounds[2].rewards)

    assert state["episodes"], "some episodes go on"
    assert equal_states(scale.state_dict(), again.state_dict())


def test_the_longest_silent_agent_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.learning.rewards.scale.MOST_AGENTS", 2)
    scale = RewardScale(0.9, CPU)

    for rollout in rounds_of([[(1.0, CUT)]] * 5, [], 4, np.random.default_rng(1)):
        scale.observe(rollout, rollout.rewards)

    assert len(scale.state_dict()["episodes"]) == 2


@pytest.mark.parametrize("reward", [0.0, 1e-6, 1.0, -1000.0, 1e30])
@pytest.mark.parametrize("end", [TERMINATED, CUT])
def test_rewards_that_never_change_do_not_explode(reward: float, end: SegmentEnd) -> None:
    scale = RewardScale(0.99, CPU)
    for rollout in rounds_of([[(reward, end)] * 500] * 4, [100, 300], 50, np.random.default_rng(1)):
        scale.observe(rollout, rollout.rewards)

    scaled = scale.scaled(torch.full((2,), reward))

    assert bool((scaled.abs() <= LIMIT).all())
    assert bool((scaled.sign() == np.sign(reward)).all())


def test_a_rare_large_reward_is_clipped() -> None:
    scale = RewardScale(0.0, CPU)
    rollout = next(
        rounds_of([[(1.0 if step % 2 else -1.0, CUT) for step in range(100)]], [], 10, np.random.default_rng(1))
    )
    scale.observe(rollout, rollout.rewards)

    np.testing.assert_allclose(scale.scaled(torch.tensor([-1e6, -2.0, 3.0, 1e6])), [-10.0, -2.0, 3.0, 10.0], rtol=1e-3)


# Signals and algorithms


def normalizing(trainer: str = "ppo", *, normalize: bool = True, **extrinsic: Any) -> Any:
    """A learner whose only rewards are the game's."""
    section = {"extrinsic": {"gamma": 0.9, "normalize_reward": normalize, **extrinsic}}
    if trainer == "poca":
        return make_poca(SPEC, signals=section)
    if trainer == "sac":
        config = make_sac_config(signals=section, save_replay_buffer=True)
        return build_algorithm(config, SPEC, CPU, 1, Demonstrations({}))
    hyper = {"batch_size": 8, "buffer_size": 24, "num_epoch": 2, "learning_rate": 1e-3}
    config = PPOConfig.model_validate({"hyperparameters": hyper, "reward_signals": section})
    return build_algorithm(config, SPEC, CPU, 1, Demonstrations({}))


def times(rollout: Rollout, factor: float) -> Rollout:
    return replace(rollout, rewards=rollout.rewards * factor, group_rewards=rollout.group_rewards * factor)


def test_each_signal_has_a_scale_of_its_own_or_none_and_strength_comes_behind() -> None:
    section = {"extrinsic": {"strength": 2.0, "normalize_reward": True}, "rnd": {"strength": 3.0}}
    signals = build_signals(
        RewardSignals.model_validate(section), SPEC, CPU, torch.Generator().manual_seed(1), Demonstrations({})
    )
    rollout = random_rollout(SPEC, [5, 3, 8], np.random.default_rng(1))
    rollout = times(rollout, 100.0)
    transitions = transitions_of(rollout, "cpu", make_poca(SPEC).actor.layout.kind)

    observed = signals.observe(rollout, transitions)

    scale = signals.named[0].scale
    assert scale is not None
    torch.testing.assert_close(observed.earned[:, 0], 2.0 * rollout.rewards)
    torch.testing.assert_close(observed.rewards[:, 0], 2.0 * scale.scaled(rollout.rewards))
    assert torch.equal(observed.rewards[:, 1], observed.earned[:, 1])
    assert torch.equal(observed.rewards, signals.evaluate(transitions))
    assert float(observed.rewards[:, 0].abs().mean()) < 5.0


def test_nothing_is_computed_where_the_key_is_off() -> None:
    ppo = normalizing(normalize=False)
    rollout = random_rollout(SPEC, [5, 3, 8], np.random.default_rng(1))

    observed = ppo.signals.observe(rollout, ppo.prepare(rollout).transitions)

    assert observed.earned is observed.rewards
    assert ppo.signals.state_dict() == {"extrinsic": {}}


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_an_update_does_not_depend_on_the_unit_of_rewards_and_reports_them_as_they_are(trainer: str) -> None:
    weights, earned = [], []
    for factor in (1.0, 2.0**12):
        algorithm = normalizing(trainer)
        for seed in range(3):
            rollout = times(random_rollout(SPEC, [40, 60, 28], np.random.default_rng(seed)), factor)
            metrics = algorithm.update(rollout, step=0)
        weights.append(algorithm.flat_weights())
        earned.append(metrics.get("Policy/Extrinsic Reward"))
        assert isinstance(algorithm, PPO | POCA)

    # The imagined first return is in a unit of its own: a millionth of the variance here.
    np.testing.assert_allclose(*weights, atol=1e-3)
    if trainer == "poca":  # the one that reports the game's rewards itself
        assert earned[1] == pytest.approx(earned[0] * 2.0**12, rel=1e-5)


def test_an_update_that_is_taken_back_takes_the_statistics_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = normalizing()
    ppo.update(random_rollout(SPEC, [10, 14], np.random.default_rng(1)), step=0)
    before = ppo.state_dict()["signals"]

    rollout = random_rollout(SPEC, [10, 14], np.random.default_rng(2))
    rollout.rewards[3] = torch.nan
    with pytest.raises(Diverged):
        ppo.update(rollout, step=0)

    assert equal_states(ppo.state_dict()["signals"], before)


def test_replayed_rewards_are_scaled_by_the_statistics_of_when_they_are_drawn() -> None:
    sac = normalizing("sac")
    assert isinstance(sac, SAC)
    rng = np.random.default_rng(1)
    scale = sac.signals.named[0].scale
    assert scale is not None
    first, second = (times(random_round(SPEC, rng, lengths=(20, 30)), factor) for factor in (1.0, 100.0))
    paid, deviations = [first.rewards], []
    for rollout in (first, second):
        sac.store(rollout)
        paid.append(rollout.rewards)
        deviations.append(float(scale.statistics.std()))

        drawn = sac.experience.batch().rewards * scale.statistics.std()  # strength is 1

        nearest = (drawn - torch.cat(paid)).abs().amin(1)
        unclipped = drawn.abs().squeeze(1) < (LIMIT - 0.01) * deviations[-1]
        assert float(nearest[unclipped].max()) < 1e-4 * deviations[-1], "each is one that the game has paid"

    assert deviations[1] > 10.0 * deviations[0]


@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac"])
def test_learning_goes_on_exactly_from_a_saved_state(trainer: str) -> None:
    algorithm, again = normalizing(trainer), normalizing(trainer)
    rng = np.random.default_rng(1)
    lengths = (40, 60, 28)
    if trainer == "sac":
        rounds = [random_round(SPEC, rng, lengths=lengths) for _ in range(3)]
    else:
        rounds = [random_rollout(SPEC, lengths, rng) for _ in range(3)]
    for rollout in rounds[:2]:
        algorithm.update(rollout, step=128)
    again.load_state_dict(algorithm.state_dict())

    measured = [each.update(rounds[2], step=256) for each in (algorithm, again)]

    assert measured[0] == measured[1]
    assert equal_states(algorithm.state_dict(), again.state_dict())
