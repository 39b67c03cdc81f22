"""Rollout: the experience of an update. Flat tensors over steps, segments one after the other, no padding."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from ludus.collector.arena import Arena
from ludus.collector.segments import Segments
from worker.experience.state import State


@dataclass(frozen=True, slots=True)
class Rollout:
    """N steps in B segments. Segment `b` owns `lengths[b]` rows, behind those of the segments before it.

    The tensors are copies, contiguous and in ordinary memory: the arena's blocks may be reclaimed once it exists.
    Integers are int64, other numbers float32.
    """

    observations: list[Tensor]
    """One per ObservationSpec: (N, *shape), float32 or uint8 as announced."""
    next_observations: list[Tensor]
    """One per ObservationSpec: (B, *shape), what followed each segment's last step; the final observation at an end."""
    continuous: Float[Tensor, "N C"]
    """The unclipped sample."""
    discrete: Int[Tensor, "N D"]
    log_probs: Float[Tensor, "N C+D"]
    """Of each continuous dimension, then of each branch, when the step was acted."""
    action_masks: Bool[Tensor, "N M"] | None
    """True = allowed; None without discrete branches."""
    rewards: Float[Tensor, " N"]
    """The reward that followed the action."""
    group_rewards: Float[Tensor, " N"]
    versions: Int[Tensor, " N"]
    """The policy version that acted."""
    lengths: Int[Tensor, " B"]
    """Steps of each segment, each at least 1."""
    endings: UInt8[Tensor, " B"]
    """Values of `SegmentEnd`."""
    starts_episode: Bool[Tensor, " B"]
    """Whether the segment begins with an episode's first step."""
    memories: Float[Tensor, "N memory"] | None
    """The actor's memory before each step; None without a recurrent actor."""
    ticks: Int[Tensor, " N"]
    """Number of the message that asked for the action (see `Arena.ticks`)."""
    successor_ticks: Int[Tensor, " B"]
    """Number of the message that brought what followed each segment's last step."""
    simulators: Int[Tensor, " B"]
    """Number of the simulator."""
    agents: Int[Tensor, " B"]
    """The simulator's id of the agent."""
    groups: Int[Tensor, " B"]
    """Group id at the segment's end, 0 = none."""
    episodes: Int[Tensor, " B"]
    """Counts the agent's episodes from 0, within its session."""
    sequences: Int[Tensor, " B"]
    """Counts the segments of the episode from 0."""
    mates_alive: Bool[Tensor, " B"]
    """Whether some other agent of the group was in an episode that went on when the segment ended."""

    @property
    def steps(self) -> int:
        """N: the number of steps."""
        return self.rewards.shape[0]

    @property
    def segments(self) -> int:
        """B: the number of segments."""
        return self.lengths.shape[0]

    @property
    def firsts(self) -> Int[Tensor, " B"]:
        """Row of each segment's first step."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def lasts(self) -> Int[Tensor, " B"]:
        """Row of each segment's last step."""
        return self.lengths.cumsum(0) - 1

    @property
    def keys(self) -> Int[Tensor, "B 4"]:
        """Simulator, agent, episode and place in it of each segment."""
        return torch.stack((self.simulators, self.agents, self.episodes, self.sequences), 1)

    def pool(self) -> list[Tensor]:
        """Return each observation's (N + B, *shape): all steps, then the successors. No copy after `gather`."""
        return [_join(*pair) for pair in zip(self.observations, self.next_observations, strict=True)]

    def followed_by(self, *others: "Rollout") -> "Rollout":
        """Return the segments of all, these first."""
        parts = (self, *others)
        return Rollout(*(_cat([getattr(part, item.name) for part in parts]) for item in fields(self)))

    def beginning(self, steps: int) -> "Rollout":
        """Return the first segments, as views: at least one, and no more than have so many steps."""
        segments = max(int((self.lengths.cumsum(0) <= steps).sum()), 1)
        rows = int(self.lengths[:segments].sum())

        def cut(name: str, value: Any) -> Any:
            count = segments if name in _OF_SEGMENTS else rows
            if isinstance(value, list):
                return [part[:count] for part in value]
            return None if value is None else value[:count]

        return Rollout(*(cut(item.name, getattr(self, item.name)) for item in fields(self)))

    def state_dict(self) -> State:
        """Return the tensors, by field; `Rollout(**state)` reads them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


_OF_SEGMENTS = frozenset(
    {
        "next_observations",
        "lengths",
        "endings",
        "starts_episode",
        "successor_ticks",
        "simulators",
        "agents",
        "groups",
        "episodes",
        "sequences",
        "mates_alive",
    }
)
"""Fields with a row for each segment, rather than for each step."""


def gather(arena: Arena, segments: Segments) -> Rollout:
    """Copy some segments, at least one, into flat tensors. Afterwards their blocks may be reclaimed."""
    steps = arena.rows_of(segments)
    rows = np.concatenate([steps, arena.successor_rows_of(segments)])
    pool = [_take(column, rows) for column in arena.observations]
    return Rollout(
        observations=[part[: len(steps)] for part in pool],
        next_observations=[part[len(steps) :] for part in pool],
        continuous=_take(arena.continuous, steps),
        discrete=_take(arena.discrete, steps).long(),
        log_probs=_take(arena.log_probs, steps),
        action_masks=_take(arena.action_masks, steps).bool() if arena.layout.spec.actions.discrete_branches else None,
        rewards=_take(arena.rewards, steps),
        group_rewards=_take(arena.group_rewards, steps),
        versions=_take(arena.versions, steps),
        lengths=_column(segments, "length"),
        endings=_column(segments, "ending").to(torch.uint8),
        starts_episode=_column(segments, "sequence") == 0,
        memories=_take(arena.memories, steps) if arena.layout.memory_size else None,
        ticks=_take(arena.ticks, steps),
        successor_ticks=_column(segments, "successor_tick"),
        simulators=_column(segments, "simulator"),
        agents=_column(segments, "agent"),
        groups=_column(segments, "group"),
        episodes=_column(segments, "episode"),
        sequences=_column(segments, "sequence"),
        mates_alive=_column(segments, "mates_alive").bool(),
    )


def _column(segments: Segments, name: str) -> Tensor:
    """Return a field of all segments, (B,) int64."""
    return torch.from_numpy(segments.column(name))


def _take(column: npt.NDArray[np.generic], rows: npt.NDArray[np.int64]) -> Tensor:
    """Copy rows of a column into a tensor of its own."""
    return torch.from_numpy(column.take(rows, axis=0))


def _cat(parts: list[Any]) -> Any:
    """Put a field of several rollouts one behind the other."""
    match parts[0]:
        case None:
            return None
        case list():
            return [torch.cat(columns) for columns in zip(*parts, strict=True)]
        case _:
            return torch.cat(parts)


def _join(steps: Tensor, successors: Tensor) -> Tensor:
    """Put rows one behind the other: as a view where they lie like that in memory, else by a copy."""
    same = steps.untyped_storage().data_ptr() == successors.untyped_storage().data_ptr()
    if same and steps.data_ptr() + steps.nbytes == successors.data_ptr() and steps.is_contiguous():
        return steps.as_strided((len(steps) + len(successors), *steps.shape[1:]), steps.stride())
    return torch.cat([steps, successors])
