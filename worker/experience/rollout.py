"""Rollout: what an update sees of the experience. Flat tensors over steps, segments one after the other, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.experience.arena import Arena
from worker.experience.segments import Segment, lengths_of


@dataclass(frozen=True, slots=True)
class Rollout:
    """N steps in B segments. Segment `b` owns `lengths[b]` rows, behind those of the segments before it.

    The tensors are copies, contiguous and in ordinary memory: the arena's blocks may be reclaimed once it exists.
    """

    observations: list[torch.Tensor]
    """One per ObservationSpec: (N, *shape), float32 or uint8 as announced."""
    next_observations: list[torch.Tensor]
    """One per ObservationSpec: (B, *shape), what followed each segment's last step; the final observation at an end."""
    continuous: torch.Tensor
    """(N, C) float32: the unclipped sample."""
    discrete: torch.Tensor
    """(N, D) int64: the choice of each branch."""
    log_probs: torch.Tensor
    """(N, C + D) float32: of each continuous dimension, then of each branch, when the step was acted."""
    action_masks: torch.Tensor | None
    """(N, M) bool, True = allowed; None without discrete branches."""
    rewards: torch.Tensor
    """(N,) float32: the reward that followed the action."""
    group_rewards: torch.Tensor
    """(N,) float32."""
    versions: torch.Tensor
    """(N,) int64: the policy version that acted."""
    lengths: torch.Tensor
    """(B,) int64: steps of each segment, each at least 1."""
    endings: torch.Tensor
    """(B,) uint8: values of `Ending`."""
    starts_episode: torch.Tensor
    """(B,) bool: whether the segment begins with an episode's first step."""

    @property
    def steps(self) -> int:
        """N: the number of steps."""
        return self.rewards.shape[0]

    @property
    def segments(self) -> int:
        """B: the number of segments."""
        return self.lengths.shape[0]


def gather(arena: Arena, segments: Sequence[Segment]) -> Rollout:
    """Copy some segments, at least one, into flat tensors. Afterwards their blocks may be reclaimed."""
    steps = arena.rows_of(segments)
    successors = arena.successor_rows_of(segments)
    has_branches = bool(arena.layout.spec.actions.discrete_branches)
    return Rollout(
        observations=[_take(column, steps) for column in arena.observations],
        next_observations=[_take(column, successors) for column in arena.observations],
        continuous=_take(arena.continuous, steps),
        discrete=_take(arena.discrete, steps).long(),
        log_probs=_take(arena.log_probs, steps),
        action_masks=_take(arena.action_masks, steps).bool() if has_branches else None,
        rewards=_take(arena.rewards, steps),
        group_rewards=_take(arena.group_rewards, steps),
        versions=_take(arena.versions, steps),
        lengths=torch.from_numpy(lengths_of(segments)),
        endings=torch.tensor([segment.ending for segment in segments], dtype=torch.uint8),
        starts_episode=torch.tensor([segment.starts_episode for segment in segments], dtype=torch.bool),
    )


def _take(column: npt.NDArray[np.generic], rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Copy rows of a column into a tensor of its own."""
    return torch.from_numpy(column.take(rows, axis=0))
