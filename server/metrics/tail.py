"""The packed form of one append of an attempt: the points of all its keys as one value.

A line of JSON names behaviors, keys and their numbers of points in order; steps (int64), times (float64) and values
(float64) of all points follow as three little-endian columns. All of it is compressed with zlib: names, steps and times
of a summary repeat themselves, so that a point takes about 24 bytes with its name.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from server.kit.db.texts import storable
from server.metrics.points import MetricPoint, Points

NAME_LENGTH = 200
"""Of a behavior and of a key, in the columns of the database. Longer ones are cut here: they must not stop the packing
of a run's other metrics later."""


def pack(points: Iterable[MetricPoint]) -> bytes:
    """Pack points of one attempt, by behavior and key; of several with one step the last one counts."""
    by_name: defaultdict[str, defaultdict[str, list[MetricPoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        by_name[storable(point.behavior, NAME_LENGTH)][storable(point.key, NAME_LENGTH)].append(point)
    parts = {behavior: {key: Points.of(some) for key, some in keys.items()} for behavior, keys in by_name.items()}
    names = [[behavior, [[key, len(some)] for key, some in keys.items()]] for behavior, keys in parts.items()]
    columns = Points.joined([some for keys in parts.values() for some in keys.values()]).pack()
    header = json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()
    return zlib.compress(header + b"\n" + b"".join(columns), level=1)


def unpack(data: bytes) -> Mapping[tuple[str, str], Points]:
    """Return the points of an append by behavior and key."""
    header, _, columns = zlib.decompress(data).partition(b"\n")
    size = len(columns) // 3
    points = Points.unpack(columns[:size], columns[size : 2 * size], columns[2 * size :])
    found, start = {}, 0
    for behavior, keys in json.loads(header):
        for key, count in keys:
            found[behavior, key] = points[start : start + count]
            start += count
    return found
