"""Segments: consecutive steps of one agent, as rows of arena blocks.

A segment never mixes rounds, is at most `time_horizon` steps long and always carries the observation that follows its
last step, so that a value can be bootstrapped wherever the episode did not terminate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np
import numpy.typing as npt


class Ending(IntEnum):
    """Why a segment ends. Terminated and truncated are never merged."""

    CUT = 0
    """The episode goes on: the horizon or the round's quota was reached. Bootstrap from the successor observation."""
    TERMINATED = 1
    """The task ended: nothing comes after the last step."""
    TRUNCATED = 2
    """A limit cut the episode, whose future still has value. Bootstrap from the successor (final) observation."""


_ENDINGS = tuple(Ending)
"""By value; looking one up takes a tenth of the time of `Ending(value)`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one agent in one round."""

    simulator: int
    """Number of the simulator in the run."""
    agent: int
    """The simulator's id of the agent."""
    group: int
    """Group id at the segment's last step; 0 = none."""
    episode: int
    """Counts the episodes of this agent from 0, within its session."""
    sequence: int
    """Counts the segments of this episode from 0."""
    length: int
    """Steps, at least 1."""
    round: int
    """The round that every step of it counts into."""
    ending: Ending
    blocks: tuple[int, ...]
    """Arena blocks in order; all but the last are full."""
    successor_tick: int = 0
    """Tick of the message that brought what followed the last step (see `Arena`)."""
    mates_alive: bool = False
    """Whether at its end some other agent of the same group (not 0) and session was in an episode that went on."""

    @property
    def starts_episode(self) -> bool:
        """Whether the first step is the first one of an episode."""
        return self.sequence == 0


SEGMENT_DTYPE = np.dtype(
    [
        ("simulator", "<i4"),
        ("agent", "<i4"),
        ("group", "<i4"),
        ("episode", "<i4"),
        ("sequence", "<i4"),
        ("length", "<i4"),
        ("round", "<i4"),
        ("ending", "<i4"),
        ("blocks", "<i4"),
        ("mates_alive", "<i4"),
        ("successor_tick", "<i8"),
    ]
)
"""One segment on the wire between collector and learner; `blocks` is the number of its blocks, whose ids follow.

48 bytes of 32-bit words, but for the tick, which lies on a multiple of 8: collectors keep records as rows of words."""
RECORD_WORDS = SEGMENT_DTYPE.itemsize // 4


def pack_segments(records: npt.NDArray[np.void], blocks: npt.NDArray[np.int32]) -> bytes:
    """Join segment records and their block ids, concatenated in the order of the records, into one payload."""
    return len(records).to_bytes(4, "little") + records.tobytes() + blocks.tobytes()


def unpack_segments(payload: bytes | memoryview) -> tuple[Segment, ...]:
    """Read what `pack_segments` wrote."""
    count = int.from_bytes(payload[:4], "little")
    records = np.frombuffer(payload, SEGMENT_DTYPE, count, 4)
    ids = np.frombuffer(payload, "<i4", offset=4 + count * SEGMENT_DTYPE.itemsize).tolist()
    segments = []
    begin = 0
    for simulator, agent, group, episode, sequence, length, number, ending, blocks, alive, tick in records.tolist():
        end = begin + blocks
        segments.append(
            Segment(
                *(simulator, agent, group, episode, sequence, length, number, _ENDINGS[ending]),
                *(tuple(ids[begin:end]), tick, bool(alive)),
            )
        )
        begin = end
    return tuple(segments)


def total_steps(segments: Iterable[Segment]) -> int:
    """Count the steps of some segments."""
    return sum(segment.length for segment in segments)


def lengths_of(segments: Sequence[Segment]) -> npt.NDArray[np.int64]:
    """Return the lengths as a vector (B,)."""
    return np.fromiter((segment.length for segment in segments), np.int64, len(segments))


def blocks_of(segments: Iterable[Segment]) -> npt.NDArray[np.int64]:
    """Return the ids of all blocks, segment by segment."""
    return np.fromiter(chain.from_iterable(segment.blocks for segment in segments), np.int64)
