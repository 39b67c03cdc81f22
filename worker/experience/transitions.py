"""The steps of a rollout as reward signals take them (transitions), and as recurrent networks do (sequences).

Dimensions: `N` steps, `B` segments, `P` rows of the pool, `C` continuous columns, `D` branches, `Q` sequences of `L`
steps.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ludus.collector.heads import Head
from ludus.collector.segments import SegmentEnd
from worker.experience.rollout import Rollout
from worker.learning.networks.head_operations import TORCH


class Transitions(NamedTuple):
    """Steps in any order, each with the observation that followed it. All tensors are on one device.

    Observations lie in a pool, each of them once, and steps point into it: of two steps that follow each other, the
    second one's observation is what followed the first.
    """

    observations: list[Tensor]
    """The pool, one per ObservationSpec: (P, *shape), raw; uint8 stays uint8."""
    index: Int[Tensor, " N"]  # type: ignore[assignment]  # hides tuple.index, which is not used
    """Row in the pool of each step's observation."""
    next_index: Int[Tensor, " N"]
    """Row of the observation that followed; the final one at an episode's end."""
    continuous: Float[Tensor, "N C"]
    """As the environment got it, in [-1, 1]."""
    discrete: Int[Tensor, "N D"]
    rewards: Float[Tensor, " N"]
    group_rewards: Float[Tensor, " N"]
    terminated: Bool[Tensor, " N"]
    """The task ended with this step."""
    ended: Bool[Tensor, " N"]
    """The episode ended with this step, because the task did or because it was truncated."""

    def select(self, rows: Tensor) -> "Transitions":
        """Take some steps; the pool stays."""
        return Transitions(self.observations, *(column[rows] for column in self[1:]))

    @property
    def steps(self) -> int:
        """N: the number of steps."""
        return self.index.shape[0]


def transitions_of(rollout: Rollout, device: torch.device | str, head: Head) -> Transitions:
    """Return all steps of a rollout in its order. The pool is the rollout's: steps, then its segments' successors.

    `head` is that of the policy that acted.
    """
    continuous, steps, last = rollout.continuous, rollout.steps, rollout.lasts
    next_index = torch.arange(1, steps + 1)
    next_index[last] = torch.arange(steps, steps + rollout.segments)
    terminated, ended = torch.zeros(2, steps, dtype=torch.bool)
    terminated[last] = rollout.endings == SegmentEnd.TERMINATED
    ended[last] = rollout.endings != SegmentEnd.CUT
    return Transitions(
        observations=[part.to(device) for part in rollout.pool()],
        index=torch.arange(steps, device=device),
        next_index=next_index.to(device),
        continuous=(continuous if head.continuous is None else head.continuous.action(TORCH, continuous)).to(device),
        discrete=rollout.discrete.to(device),
        rewards=rollout.rewards.to(device),
        group_rewards=rollout.group_rewards.to(device),
        terminated=terminated.to(device),
        ended=ended.to(device),
    )


class Sequences(NamedTuple):
    """Segments in pieces of equal length, for recurrent networks: row indices, in the order of the segments.

    A segment is cut into pieces of `L` steps from its first one on; only the last piece may be shorter, and is padded
    by repeating its last step. Padded rows are no experience: mask them out.
    """

    rows: Int[Tensor, "Q L"]
    """Row of each step; behind a sequence's end its last row again."""
    mask: Bool[Tensor, "Q L"]
    """Whether it is a step, and no padding. The first one of a sequence always is."""
    segments: Int[Tensor, " Q"]
    """The segment that the sequence is a piece of."""

    @property
    def first(self) -> Int[Tensor, " Q"]:
        """Row of the first step of each sequence, whose memory is where the network starts."""
        return self.rows[:, 0]

    def select(self, which: Tensor) -> "Sequences":
        """Take some sequences."""
        return Sequences(self.rows[which], self.mask[which], self.segments[which])


def sequences_of(lengths: Tensor, length: int) -> Sequences:
    """Cut segments of some lengths (B,), which lie one behind the other, into sequences of `length` steps."""
    pieces = (lengths + length - 1) // length  # (B,)
    segments = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), pieces)  # (Q,)
    place = torch.arange(len(segments), device=lengths.device) - (pieces.cumsum(0) - pieces)[segments]
    stop = lengths.cumsum(0)[segments]  # the row after the segment
    first = stop - lengths[segments] + place * length  # (Q,)
    rows = first[:, None] + torch.arange(length, device=lengths.device)
    return Sequences(torch.minimum(rows, stop[:, None] - 1), rows < stop[:, None], segments)
