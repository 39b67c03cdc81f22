"""Segments: consecutive steps of one agent, as rows of arena blocks.

A segment never mixes rounds, is at most `time_horizon` steps long and always carries the observation that follows its
last step, so that a value can be bootstrapped wherever the episode did not terminate. Segments are columns from the
collector that cuts them to the minibatch: one record each, and the ids of their blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class SegmentEnd(IntEnum):
    """Why a segment ends. Terminated and truncated are never merged."""

    CUT = 0
    """The episode goes on: the horizon or the round's quota was reached. Bootstrap from the successor observation."""
    TERMINATED = 1
    """The task ended: nothing comes after the last step."""
    TRUNCATED = 2
    """A limit cut the episode, whose future still has value. Bootstrap from the successor (final) observation."""


SEGMENT_DTYPE = np.dtype(
    [
        ("simulator", "<i4"),  # number of the simulator in the run
        ("agent", "<i4"),  # the simulator's id of the agent
        ("group", "<i4"),  # group id at the segment's last step; 0 = none
        ("episode", "<i4"),  # counts the episodes of this agent from 0, within its session
        ("sequence", "<i4"),  # counts the segments of this episode from 0
        ("length", "<i4"),  # steps, at least 1
        ("round", "<i4"),  # the round that every step of it counts into
        ("ending", "<i4"),  # a value of `SegmentEnd`
        ("blocks", "<i4"),  # number of its arena blocks; all but the last are full
        ("mates_alive", "<i4"),  # whether at its end another agent of its group and session was in an episode
        ("successor_tick", "<i8"),  # tick of the message with the successor of the last step (`Arena.ticks`)
    ]
)
"""One segment, in memory and on the wire between collector and learner.

48 bytes of 32-bit words, but for the tick, which lies on a multiple of 8: collectors keep records as rows of words."""
RECORD_WORDS = SEGMENT_DTYPE.itemsize // 4


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Some segments of one behavior."""

    records: npt.NDArray[np.void]
    """(B,) of `SEGMENT_DTYPE`."""
    blocks: npt.NDArray[np.int32]
    """Ids of all their arena blocks, segment by segment."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.records)

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """Return a field of all records, (B,)."""
        column: npt.NDArray[np.int64] = self.records[name].astype(np.int64)
        return column

    @property
    def steps(self) -> int:
        """Sum of their lengths."""
        return int(self.records["length"].sum())

    def select(self, chosen: npt.NDArray[np.bool_]) -> "Segments":
        """Return those that a mask (B,) names."""
        return Segments(self.records[chosen], self.blocks[np.repeat(chosen, self.records["blocks"])])

    def by_round(self) -> "Iterator[tuple[int, Segments]]":
        """Yield each round that they count into, ascending, with its segments: one without a copy, as is usual."""
        rounds = sorted(set(self.records["round"].tolist()))
        for number in rounds:
            yield number, self if len(rounds) == 1 else self.select(self.records["round"] == number)

    def of_rounds(self, rounds: Sequence[int]) -> "Segments":
        """Return the same segments, each counting into another round."""
        records = self.records.copy()
        records["round"] = rounds
        return Segments(records, self.blocks)

    @classmethod
    def joined(cls, parts: "Sequence[Segments]") -> "Segments":
        """Return the segments of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        records = [np.empty(0, SEGMENT_DTYPE), *(part.records for part in parts)]
        return cls(np.concatenate(records), np.concatenate([np.empty(0, np.int32), *(part.blocks for part in parts)]))

    def pack(self) -> bytes:
        """Return one payload."""
        return len(self).to_bytes(4, "little") + self.records.tobytes() + self.blocks.tobytes()

    @classmethod
    def unpack(cls, payload: bytes | memoryview) -> "Segments":
        """Read a copy of the output of `pack`."""
        count = int.from_bytes(payload[:4], "little")
        records = np.frombuffer(payload, SEGMENT_DTYPE, count, 4).copy()
        blocks = np.frombuffer(payload, "<i4", offset=4 + count * SEGMENT_DTYPE.itemsize)
        return cls(records, blocks.astype(np.int32))
