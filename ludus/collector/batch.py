"""Agents of several sessions that wait for an action, as one batch, and the parts of messages that it is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ludus.collector.agents import AgentIndex, Slots
from ludus.protocol.batches import Array, BehaviorBatch, Bytes, Floats, Ints

if TYPE_CHECKING:
    from ludus.collector.runners import PolicyRunner


class SessionCallbacks(Protocol):
    """Callbacks from a runner to a session."""

    @property
    def agent_indexes(self) -> "Mapping[str, tuple[PolicyRunner, AgentIndex]]":
        """Its agents by behavior, each with the runner that answers them."""

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        """Send actions: of all agents that asked in the step, in their order, or of `agents` alone."""


class Part(NamedTuple):
    """The rows of a batch that answer one step of one session."""

    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    rows: int
    tick: int
    """Number of the message."""
    partial: bool = False
    """Whether some agents of the step ended while they waited, so that the answer must name the others."""


@dataclass(slots=True, eq=False)
class Batch:
    """Agents that wait for an action, rows part by part."""

    parts: list[Part]
    slots: Slots
    observations: tuple[Array, ...]
    masks: Bytes | None

    @property
    def rows(self) -> int:
        """Agents."""
        return len(self.slots)

    def keep_rows(self, keep: Array) -> None:
        """Remove the other rows; parts that lose some but not all of theirs become partial."""
        if keep.all():
            return
        parts, begin = [], 0
        for part in self.parts:
            left = int(keep[begin : begin + part.rows].sum())
            begin += part.rows
            if left:
                parts.append(part if left == part.rows else part._replace(rows=left, partial=True))
        self.parts = parts
        self.slots = self.slots[keep]
        self.observations = tuple([values[keep] for values in self.observations])
        self.masks = None if self.masks is None else self.masks[keep]

    def take_parts(self, taken: list[bool]) -> "Batch":
        """Move whole parts into a batch of their own."""
        if all(taken):
            whole = replace(self)
            self.parts, self.slots = [], self.slots[:0]
            return whole
        rows = np.repeat(taken, [part.rows for part in self.parts])
        moved = replace(
            self,
            parts=[part for part, take in zip(self.parts, taken, strict=True) if take],
            slots=self.slots[rows],
            observations=tuple([values[rows] for values in self.observations]),
            masks=None if self.masks is None else self.masks[rows],
        )
        self.keep_rows(~rows)
        return moved


class Staged(NamedTuple):
    """One behavior's part of a received step, checked."""

    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    batch: BehaviorBatch
    tick: int
    terminals: Slots | None
    decisions: Slots | None
