"""Group mates: those of every step, and those of the step after every segment.

Mates are other agents of the same simulator with the same group id (not 0). A message of a simulator is a *moment*;
ticks number them. A step lasts from the tick of its request to the tick of what followed it, that one excluded, and its
agent is there as long as one of its steps lasts. So with equal decision periods mates are the steps of the same
message, a mate that decides more seldom counts with its last step, and one that has died or whose step belongs to
another round does not count.

What follows a segment is a moment, too: that of its successor tick. There

 * a mate whose step goes on or begins there counts with that step's observation;
 * a mate that was cut or truncated in the same moment counts with the observation that followed it;
 * a mate that died there does not count, and neither does one that begins an episode there: in most games it belongs
   to the group's next attempt.

Everything is sorting and searching; the work grows with the pairs of a step and a moment that it covers.
Dimensions: `N` steps, `B` segments, `G` mates (the most that any step, or any segment's end, has; may be 0).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ludus.collector.segments import SegmentEnd
from worker.experience.rollout import Rollout

Ints = npt.NDArray[np.int64]


class Mates(NamedTuple):
    """The mates of some rows, packed to the left, in ascending order of their pool rows."""

    rows: torch.Tensor
    """(R, G) int64: rows of the pool: all steps, then the successors of all segments. 0 where there is no mate."""
    present: torch.Tensor
    """(R, G) bool: whether there is a mate."""


class Teams(NamedTuple):
    """The mates of each step and of each segment's end, and the rewards of whole groups."""

    steps: Mates
    """(N, G): of each step. Only steps occur, so that observations *and* actions are known."""
    ends: Mates
    """(B, G): of what follows each segment. Successors occur, too."""
    self_at_end: torch.Tensor
    """(B,) bool: whether the agent's own final observation counts in the value of what follows. Not where it died and
    mates go on: then what follows is theirs. Where mates go on in another round only, it stands for them."""
    bootstraps: torch.Tensor
    """(B,) bool: whether anything follows. False only where the whole group terminated."""
    rewards: torch.Tensor
    """(N,) float32: own rewards plus all those that mates received while the step lasted, its end included."""


def teams_of(rollout: Rollout) -> Teams:
    """Return every step's mates, those of every segment's end, and the rewards of teams."""
    moments = _Moments(rollout)
    ends = moments.mates_at_ends()
    terminated = rollout.endings.numpy() == SegmentEnd.TERMINATED
    accompanied = ends.present.any(1).numpy()
    return Teams(
        steps=moments.mates_of_steps(),
        ends=ends,
        self_at_end=torch.from_numpy(~(terminated & accompanied)),
        bootstraps=torch.from_numpy(~terminated | accompanied | rollout.mates_alive.numpy()),
        rewards=torch.from_numpy(moments.rewards(rollout.rewards.numpy())),
    )


class _Moments:
    """A rollout's steps as half-open intervals on one line, on which every group has a stretch of its own."""

    def __init__(self, rollout: Rollout) -> None:
        lengths = rollout.lengths.numpy()
        ticks, after = rollout.ticks.numpy(), rollout.successor_ticks.numpy()
        simulators, agents, groups = (column.numpy() for column in (rollout.simulators, rollout.agents, rollout.groups))
        empty = np.full_like(agents, -1)
        team = _number(simulators, groups, np.where(groups == 0, agents, empty))  # agents without a group: alone
        lowest = min(ticks.min(), after.min())
        stretch = max(ticks.max(), after.max()) - lowest + 2
        self.agent = _number(simulators, agents)  # (B,)
        self.segment = np.repeat(np.arange(len(lengths)), lengths)  # (N,)
        last = np.cumsum(lengths) - 1  # (B,)
        following = np.roll(ticks, -1)
        following[last] = after
        offset = team * stretch - lowest  # (B,)
        self.begin = ticks + offset[self.segment]  # (N,)
        self.end = following + offset[self.segment]  # (N,)
        self.close = after + offset  # (B,)
        self.begins_episode = np.zeros(len(ticks), bool)
        self.begins_episode[last - lengths + 1] = rollout.starts_episode.numpy()
        self.survives = rollout.endings.numpy() != SegmentEnd.TERMINATED  # (B,)
        self.cut = rollout.endings.numpy() == SegmentEnd.CUT  # (B,)

    def mates_of_steps(self) -> Mates:
        """Return the steps that last when each step begins, its own excepted."""
        points = np.unique(self.begin)
        covers = _Covers(
            first=np.searchsorted(points, self.begin),
            stop=np.searchsorted(points, self.end),
            rows=np.arange(len(self.begin)),
            agents=self.agent[self.segment],
        )
        return covers.mates(np.searchsorted(points, self.begin), self.agent[self.segment], len(points))

    def mates_at_ends(self) -> Mates:
        """Return the known observations of the others when each segment ends."""
        points = np.unique(self.close)
        at_close = np.searchsorted(points, self.close)
        # A segment that was cut goes on with a step of the same moment, if that is in the rollout.
        continued = np.stack([self.agent[self.segment], self.begin], 1)[~self.begins_episode]
        numbers = _number(*np.concatenate([np.stack([self.agent, self.close], 1), continued]).T)
        goes_on = np.isin(numbers[: len(self.agent)], numbers[len(self.agent) :]) & self.cut
        successors = np.flatnonzero(self.survives & ~goes_on)
        covers = _Covers(
            first=np.concatenate([np.searchsorted(points, self.begin + self.begins_episode), at_close[successors]]),
            stop=np.concatenate([np.searchsorted(points, self.end), at_close[successors] + 1]),
            rows=np.concatenate([np.arange(len(self.begin)), len(self.begin) + successors]),
            agents=np.concatenate([self.agent[self.segment], self.agent[successors]]),
        )
        return covers.mates(at_close, self.agent, len(points))

    def rewards(self, rewards: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the sum of the whole team's rewards after each step's beginning, up to its end."""
        order = np.argsort(self.end, kind="stable")
        ends = self.end[order]
        bounds = np.stack([np.searchsorted(ends, self.begin, "right"), np.searchsorted(ends, self.end, "right")], 1)
        padded = np.append(rewards[order].astype(np.float64), 0.0)  # so that the last bound is an index
        sums = np.add.reduceat(padded, bounds.reshape(-1))[::2]  # never empty: a step's own reward is in its range
        return sums.astype(np.float32)


class _Covers(NamedTuple):
    """Pool rows and the points that each of them covers: `first` up to `stop`, excluded; none if that is not more."""

    first: Ints
    stop: Ints
    rows: Ints
    agents: Ints

    def mates(self, at: Ints, agents: Ints, points: int) -> Mates:
        """Return for each query, a point `at` which an agent asks, the rows of the other agents that cover it.

        A table has a row for each point and a cell for each cover of it. For covers 0..2 (A, of agent 5), 1..3 (B, 6)
        and three points: A covers 0, 1 and B covers 1, 2, so that the table is `[A -], [A B], [B -]`.
        """
        count = np.maximum(self.stop - self.first, 0)  # points of each cover
        cover = np.repeat(np.arange(len(count)), count)  # a pair for each cover and each of its points
        point = self.first[cover] + np.arange(len(cover)) - np.repeat(np.cumsum(count) - count, count)
        order = np.argsort(point, kind="stable")
        cover, point = cover[order], point[order]
        size = np.bincount(point, minlength=points)
        cell = np.arange(len(point)) - np.repeat(np.cumsum(size) - size, size)  # counts the pairs of a point
        shape = (points, int(size.max(initial=0)) + 1)
        rows, present_agents = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        rows[point, cell], present_agents[point, cell] = self.rows[cover], self.agents[cover]
        return _without(agents, rows[at], present_agents[at])


def _without(agents: Ints, rows: Ints, present_agents: Ints) -> Mates:
    """Take the agent that asks out of its row, and close the gap; -1 in `present_agents` means no agent."""
    present = (present_agents >= 0) & (present_agents != agents[:, None])
    width = int(present.sum(1).max(initial=0))
    order = np.argsort(~present, axis=1, kind="stable")[:, :width]
    present = np.take_along_axis(present, order, 1)
    return Mates(torch.from_numpy(np.where(present, np.take_along_axis(rows, order, 1), 0)), torch.from_numpy(present))


def _number(*columns: npt.NDArray[np.generic]) -> Ints:
    """Number the distinct rows of some columns from 0."""
    _, numbers = np.unique(np.stack(columns, 1).astype(np.int64), axis=0, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)
