"""What episodes earned, added up over segments and rounds."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from tests.worker.rollouts import make_rollout
from worker.experience.rollout import Rollout
from worker.learning.rewards.episodes import EpisodeReturns, segment_sums

CUT, TERMINATED, TRUNCATED = SegmentEnd.CUT, SegmentEnd.TERMINATED, SegmentEnd.TRUNCATED


def rollout_of(segments: list[tuple[int, int, int, SegmentEnd]], length: int = 1) -> Rollout:
    """Segments of (agent, episode, place, ending)."""
    agents, episodes, sequences, endings = zip(*segments, strict=True)
    steps = length * len(segments)
    return make_rollout(
        observations=[np.zeros((steps, 1))],
        rewards=np.zeros(steps),
        log_probs=np.zeros((steps, 1)),
        lengths=[length] * len(segments),
        ending=list(endings),
        agents=agents,
        episodes=episodes,
        sequences=sequences,
    )


def earn(returns: EpisodeReturns, segments: list[tuple[int, int, int, SegmentEnd]], sums: list[float]) -> list[float]:
    finished: list[float] = returns.add(rollout_of(segments), np.array(sums)[:, None])[:, 0].tolist()
    return finished


def test_sums_are_of_segments_and_signals() -> None:
    rollout = make_rollout(
        observations=[np.zeros((5, 1))], rewards=np.zeros(5), log_probs=np.zeros((5, 1)), lengths=[2, 3]
    )
    rewards = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [5.0, 50.0]])

    assert segment_sums(rewards, rollout).tolist() == [[3.0, 30.0], [12.0, 120.0]]


def test_an_episode_in_one_segment_is_finished_at_once() -> None:
    returns = EpisodeReturns(1)

    assert sorted(earn(returns, [(1, 0, 0, TERMINATED), (2, 0, 0, TRUNCATED), (3, 0, 0, CUT)], [1.0, 2.0, 4.0])) == [
        1.0,
        2.0,
    ]


def test_segments_add_up_over_rounds_in_any_order() -> None:
    returns = EpisodeReturns(1)

    assert earn(returns, [(1, 0, 1, CUT), (1, 0, 0, CUT)], [2.0, 1.0]) == []
    assert earn(returns, [(2, 0, 0, TERMINATED)], [50.0]) == [50.0]
    assert earn(returns, [(1, 0, 2, TERMINATED), (1, 1, 0, CUT)], [4.0, 100.0]) == [7.0]
    assert earn(returns, [(1, 1, 1, TRUNCATED)], [200.0]) == [300.0]


def test_an_episode_that_never_ended_does_not_count_into_the_next_one() -> None:
    returns = EpisodeReturns(1)

    assert earn(returns, [(1, 0, 0, CUT)], [1.0]) == []
    assert earn(returns, [(1, 4, 3, TERMINATED)], [2.0]) == [2.0]


def test_the_longest_silent_agent_is_forgotten_first(monkeypatch: Any) -> None:
    monkeypatch.setattr("worker.learning.rewards.episodes.MOST_AGENTS", 2)
    returns = EpisodeReturns(1)
    for agent in (1, 2, 3):
        earn(returns, [(agent, 0, 0, CUT)], [float(agent)])

    finished = earn(returns, [(agent, 0, 1, TERMINATED) for agent in (1, 2, 3)], [10.0, 10.0, 10.0])

    assert finished == pytest.approx([10.0, 12.0, 13.0])
