"""Cutting: the open segments of a runner's agents, written into the arena step by step until they are cut.

Observations, actions and rewards go straight into the arena's columns; a segment that ends is a record and its block
ids, nothing is copied. A recurrent actor's memory is written with each step as it was before it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ludus.collector.acted import Acted
from ludus.collector.agents import Agents, Slots
from ludus.collector.arena import Arena
from ludus.collector.segments import SEGMENT_DTYPE, SegmentEnd, Segments
from ludus.protocol.batches import Array, Bytes, Ints

LENGTH, ENDING, BLOCKS, MATES_ALIVE = (
    (SEGMENT_DTYPE.names or ()).index(name) for name in ("length", "ending", "blocks", "mates_alive")
)
"""Words of a record; all that lies before the tick takes one each."""


class SegmentBuilder:
    """The open segments of all agents of a table. All `slots` arguments hold each slot once."""

    def __init__(self, arena: Arena, agents: Agents, time_horizon: int) -> None:
        layout = arena.layout
        self.blocks: list[int] = []
        """Free arena blocks; the last one is used first."""
        self.horizon = time_horizon
        """Longest segment."""
        self.longest = 0
        """No open segment is longer than this."""
        self.waiting = 0
        """Segments that `take` would return."""
        self.round: int | None = None
        """The round of all open segments; None when they may differ."""
        self._arena = arena
        self._agents = agents
        self._columns = arena.observations
        self._rows = layout.rows
        self._stride = layout.stride
        self._scratch = layout.scratch_row
        self._block_index = np.arange(agents.blocks.shape[1])
        self._closed: list[tuple[Ints, Ints]] = []

    def extend(
        self,
        slots: Slots,
        observations: Sequence[Array],
        masks: Bytes | None,
        acted: Acted,
        version: int,
        round_number: int | Ints,
    ) -> None:
        """Write a step of each. There must be a free block for each slot."""
        agents, arena = self._agents, self._arena
        if isinstance(round_number, np.ndarray) or round_number != self.round:
            self._cut_stale(slots, observations, round_number)
        length = agents.length[slots]
        within = length % self._rows
        if np.count_nonzero(within) < len(slots):
            fresh = slots[within == 0]
            blocks = np.array(self.blocks[-len(fresh) :], np.int64)
            assert len(blocks) == len(fresh), "the batcher answers no more than there are blocks"
            del self.blocks[-len(fresh) :]
            agents.blocks[fresh, length[within == 0] // self._rows] = blocks
            agents.row[fresh] = blocks * self._stride - 1
        rows = agents.row[slots] + 1
        for column, values in zip(self._columns, observations, strict=True):
            column[rows] = values
        if acted.continuous_sample.shape[1]:
            arena.continuous[rows] = acted.continuous_sample
        if acted.discrete.shape[1]:
            arena.discrete[rows] = acted.discrete
            arena.action_masks[rows] = 1 if masks is None else masks
        arena.log_probs[rows] = acted.log_probs
        arena.versions[rows] = version
        arena.ticks[rows] = agents.tick[slots]
        if acted.memory is not None:
            arena.memories[rows] = agents.memory[slots]
        agents.row[slots] = rows
        agents.length[slots] = length + 1
        agents.round[slots] = round_number
        self.longest += 1

    def cut(self, slots: Slots, observations: Sequence[Array]) -> None:
        """Cut the open segments of waiting agents; `observations` are those that they wait with."""
        opened = self._agents.length[slots] > 0
        if opened.all():
            self.close(slots, observations, SegmentEnd.CUT)
        elif opened.any():
            self.close(slots[opened], [values[opened] for values in observations], SegmentEnd.CUT)

    def cut_full(self, slots: Slots, observations: Sequence[Array]) -> None:
        """Cut the segments that have reached the horizon; `slots` wait with these observations."""
        full = self._agents.length[slots] >= self.horizon
        if full.any():
            self.close(slots[full], [values[full] for values in observations], SegmentEnd.CUT)
        self.longest = int(self._agents.length.max())

    def close(self, slots: Slots, successors: Sequence[Array], ending: SegmentEnd | npt.NDArray[np.integer]) -> None:
        """End open segments, given the observations that followed them."""
        agents = self._agents
        rows = agents.row[slots] + 1
        for column, values in zip(self._columns, successors, strict=True):
            column[rows] = values
        records = agents.records[slots]
        records[:, ENDING] = ending
        if agents.grouped:
            records[:, MATES_ALIVE] = agents.have_mates(slots)
        if len(self._block_index) == 1:
            records[:, BLOCKS] = 1
            blocks = agents.blocks[slots, 0]
        else:
            used = -(-records[:, LENGTH] // self._rows)
            records[:, BLOCKS] = used
            blocks = agents.blocks[slots][self._block_index < used[:, None]]
        self._closed.append((records, blocks))
        self.waiting += len(slots)
        agents.sequence[slots] += 1
        agents.length[slots] = 0
        agents.row[slots] = self._scratch

    def discard(self, slots: Slots) -> None:
        """Forget open segments."""
        self.blocks.extend(self.blocks_in_use(slots))
        self._agents.length[slots] = 0
        self._agents.row[slots] = self._scratch

    def move(self, slots: Slots, rounds: Sequence[int]) -> None:
        """Move the newest step of each into another round than the steps before it."""
        for slot, number in zip(slots.tolist(), rounds, strict=True):
            if self._agents.length[slot] > 1:
                self._split(slot)
            self._agents.round[slot] = number
        self.round = None

    def take(self) -> Segments | None:
        """Return the segments that were cut, and forget them."""
        if not self._closed:
            return None
        records = np.concatenate([records for records, _ in self._closed]).view(SEGMENT_DTYPE)[:, 0]
        blocks = np.concatenate([blocks for _, blocks in self._closed])
        self._closed.clear()
        self.waiting = 0
        return Segments(records, blocks.astype(np.int32, copy=False))

    def blocks_in_use(self, slots: Slots) -> list[int]:
        """Return the blocks of open segments."""
        used = -(-self._agents.length[slots] // self._rows)
        blocks: list[int] = self._agents.blocks[slots][self._block_index < used[:, None]].tolist()
        return blocks

    # Parts ------------------------------------------------------------------------------------------------------

    def _cut_stale(self, slots: Slots, observations: Sequence[Array], round_number: int | Ints) -> None:
        """Cut the segments of another round than the one that the next step belongs to."""
        agents = self._agents
        stale = (agents.round[slots] != round_number) & (agents.length[slots] > 0)
        if stale.any():
            self.close(slots[stale], [values[stale] for values in observations], SegmentEnd.CUT)
        if isinstance(round_number, int):
            others = (agents.round != round_number) & (agents.length > 0)
            self.round = None if others.any() else round_number
        else:
            self.round = None

    def _split(self, slot: int) -> None:
        """Cut a segment before its newest step, which becomes the first one of a segment of its own."""
        agents = self._agents
        one = np.array([slot], np.intp)
        row, length = int(agents.row[slot]), int(agents.length[slot])
        # If the newest step is the first one of its block, the new segment takes the block over. Else the step moves to
        # the first row of another block.
        last_block, within = divmod(length - 1, self._rows)
        own_block = within == 0
        block = int(agents.blocks[slot, last_block]) if own_block else self.blocks.pop()
        new_row = block * self._stride
        if not own_block:
            for column in self._arena.columns:
                column[new_row] = column[row]
            previous = row - 1
        else:
            previous = int(agents.blocks[slot, last_block - 1]) * self._stride + self._rows - 1
        # The segment ends at the step before; `close` writes the successor behind it.
        agents.length[slot] = length - 1
        agents.row[slot] = previous
        # The observation of the step that is out is the successor of the steps before it.
        self.close(one, [column[new_row : new_row + 1].copy() for column in self._columns], SegmentEnd.CUT)
        agents.blocks[slot, 0] = block
        agents.row[slot] = new_row
        agents.length[slot] = 1
