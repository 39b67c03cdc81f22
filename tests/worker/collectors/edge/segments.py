"""Segments as an edge collector delivers them."""

from ludus.collector.segments import SegmentEnd, Segments
from tests.segments import Segment, columns_of

NUMBER = 0
"""Number of their simulator."""
BLOCK = 5


def good(length: int = 3, **fields: int) -> Segments:
    """A segment that a collector may deliver, but for these fields of its record."""
    segments = columns_of([Segment(NUMBER, 1, 0, 0, 0, length, 0, SegmentEnd.CUT, (BLOCK,))])
    for name, value in fields.items():
        segments.records[name] = value
    return segments
