"""Rollouts: put one behind the other, cut after whole segments, and as a pool without a copy."""

import numpy as np
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from tests.worker.rollouts import equal_states, make_spec, random_rollout
from worker.experience.rollout import Rollout

SPEC = make_spec(observations=(3, (1, 4, 4)), continuous=2, branches=(3,))


def rollout(lengths: list[int], seed: int = 1) -> Rollout:
    rng = np.random.default_rng(seed)
    return random_rollout(SPEC, lengths, rng, masked=True, memory_size=4, ending=SegmentEnd.CUT)


def test_rows_of_segments_lie_behind_each_other() -> None:
    first, second = rollout([4, 2]), rollout([3], seed=2)
    both = first.followed_by(second)

    assert (both.steps, both.segments) == (9, 3)
    assert both.firsts.tolist() == [0, 4, 6]
    assert both.lasts.tolist() == [3, 5, 8]
    assert torch.equal(both.rewards[6:], second.rewards)
    assert both.keys.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(("steps", "segments"), [(1, 1), (4, 1), (5, 1), (6, 2), (99, 3)])
def test_the_beginning_has_whole_segments_and_at_least_one(steps: int, segments: int) -> None:
    first, second = rollout([4, 2]), rollout([3], seed=2)

    beginning = first.followed_by(second).beginning(steps)

    assert beginning.segments == segments
    if segments == 2:
        assert equal_states(beginning.state_dict(), first.state_dict())


def test_the_pool_is_a_view_where_successors_lie_behind_the_steps() -> None:
    parts = rollout([4, 2])
    memory = torch.cat([parts.observations[0], parts.next_observations[0]])
    gathered = Rollout(**{**parts.state_dict(), "observations": [memory[:6]], "next_observations": [memory[6:]]})

    (pool,) = gathered.pool()

    assert pool.data_ptr() == memory.data_ptr()
    assert torch.equal(pool, memory)
    assert torch.equal(parts.pool()[0], memory), "else it is a copy"
