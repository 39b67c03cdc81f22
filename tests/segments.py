"""Segments one by one, for tests: as rows, and as columns again."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ludus.collector.segments import SEGMENT_DTYPE, SegmentEnd, Segments


class Segment(NamedTuple):
    """One record, and its blocks."""

    simulator: int
    agent: int
    group: int
    episode: int
    sequence: int
    length: int
    round: int
    ending: SegmentEnd
    blocks: tuple[int, ...]
    successor_tick: int = 0
    mates_alive: bool = False

    @property
    def starts_episode(self) -> bool:
        return self.sequence == 0


def columns_of(segments: Iterable[Segment]) -> Segments:
    """Segments as the source has them."""
    segments = list(segments)
    records = [(*one[:8], len(one.blocks), one.mates_alive, one.successor_tick) for one in segments]
    blocks = [block for one in segments for block in one.blocks]
    return Segments(np.array(records, SEGMENT_DTYPE), np.array(blocks, np.int32))


def rows_of(segments: Segments) -> list[Segment]:
    """Segments one by one."""
    ends = segments.column("blocks").cumsum().tolist()
    return [
        Segment(
            *values[:7],
            SegmentEnd(values[7]),
            tuple(segments.blocks[end - values[8] : end].tolist()),
            values[10],
            bool(values[9]),
        )
        for values, end in zip(segments.records.tolist(), ends, strict=True)
    ]
