"""Segments on the stream: their records, and the rows of each column of the arena, step by step.

The block ids of a record's segment are those of one arena, so they do not travel: the receiver writes the rows into
blocks of its own. Successor observations follow the rows of their column.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ludus.collector.arena import Arena
from ludus.collector.segments import Segments

FRAME_BYTES = 4 << 20
"""A delivery is cut into frames of about so many bytes; a segment is never cut."""


def gather(arena: Arena, segments: Segments) -> list[bytes]:
    """Return the bytes of every column of the segments."""
    rows = arena.rows_of(segments)
    with_successors = np.concatenate([rows, arena.successor_rows_of(segments)])
    observations = len(arena.observations)
    return [
        column[with_successors if index < observations else rows].tobytes()
        for index, column in enumerate(arena.columns)
    ]


def scatter(arena: Arena, segments: Segments, contents: Sequence[bytes]) -> None:
    """Write the output of `gather` into the blocks that `segments` names. Raises ValueError for wrong sizes."""
    rows = arena.rows_of(segments)
    with_successors = np.concatenate([rows, arena.successor_rows_of(segments)])
    observations = len(arena.observations)
    if len(contents) != len(arena.columns):
        raise ValueError(f"{len(contents)} columns came, the behavior has {len(arena.columns)}")
    for index, (column, data) in enumerate(zip(arena.columns, contents, strict=True)):
        written = with_successors if index < observations else rows
        row_shape = column.shape[1:]
        expected = len(written) * int(np.prod(row_shape, dtype=np.int64)) * column.itemsize
        if len(data) != expected:
            raise ValueError(f"column {index} has {len(data):,} bytes instead of {expected:,}")
        if expected:
            column[written] = np.frombuffer(data, column.dtype).reshape((len(written), *row_shape))


def in_frames(arena: Arena, segments: Segments) -> Iterator[Segments]:
    """Yield the segments in portions of about `FRAME_BYTES`, in their order."""
    row_bytes = sum(column.row_bytes for column in arena.layout.columns())
    portion = np.cumsum(segments.records["length"].astype(np.int64) * row_bytes) // FRAME_BYTES
    for number in np.unique(portion):
        yield segments.select(portion == number)
