"""Metrics of a run as a Parquet file, which pandas, polars and DuckDB read directly.

One row per point, in the columns run_id, attempt, behavior (empty for the run as a whole), key, step, time (UTC, in
microseconds) and value, sorted by behavior, key, attempt and step. A row group has some `ROWS` rows, and says which
keys it has, so that one metric is read without the others. Pages carry checksums.

pyarrow is imported when the first file is written or read: the api starts without it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import RawIOBase
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from server.metrics.points import EVERY_STEP, Place, Points, Window

ROWS = 1 << 17
"""Rows of a group, at most; those of the last one may be few."""
Metric = tuple[str, str, Mapping[int, Points]]
"""Behavior, key, and points by attempt."""
Part = tuple[str, str, int, Points]
"""Behavior, key, attempt, and points of it."""


def write(target: Path | IO[bytes], run_id: str, metrics: Iterable[Metric]) -> int:
    """Write the metrics of a run, which come sorted by behavior and key; return how many points there are."""
    import pyarrow as pa  # noqa: PLC0415  # see above
    import pyarrow.parquet as pq  # noqa: PLC0415

    text = pa.dictionary(pa.int32(), pa.string())
    fields = {"run_id": text, "attempt": pa.int32(), "behavior": text, "key": text, "step": pa.int64()}
    schema = pa.schema({**fields, "time": pa.timestamp("us", tz="UTC"), "value": pa.float64()})
    options = {
        "compression": "zstd",
        "use_dictionary": ["run_id", "attempt", "behavior", "key"],
        "column_encoding": {"step": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"},
        "write_page_checksum": True,
    }
    count = 0
    with pq.ParquetWriter(target, schema, **options) as writer:
        for group in _groups(metrics):
            lengths = [len(points) for *_, points in group]
            joined = Points.joined([points for *_, points in group])

            writer.write_table(
                pa.table(
                    [
                        _texts([run_id] * len(group), lengths),
                        np.repeat([attempt for _, _, attempt, _ in group], lengths).astype(np.int32),
                        _texts([behavior for behavior, *_ in group], lengths),
                        _texts([key for _, key, *_ in group], lengths),
                        joined.steps,
                        pa.array(np.round(joined.times * 1e6).astype("datetime64[us]"), schema.field("time").type),
                        joined.values,
                    ],
                    schema=schema,
                )
            )
            count += len(joined)
    return count


def read(
    file: IO[bytes] | RawIOBase, run_id: str, is_asked: Callable[[str, str], bool], window: Window = EVERY_STEP
) -> dict[Place, dict[int, Points]]:
    """Return the points in a window of the metrics, by attempt, whose behavior and key are asked for.

    Raises OSError where a page is damaged.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  # see above

    pieces: defaultdict[Place, defaultdict[int, list[Points]]] = defaultdict(lambda: defaultdict(list))
    with pq.ParquetFile(
        file, read_dictionary=["behavior", "key"], pre_buffer=True, page_checksum_verification=True
    ) as stored:
        for group in range(stored.num_row_groups):
            table = stored.read_row_group(group, columns=["behavior", "key"], use_threads=False)
            behaviors, behavior_codes = _coded(table["behavior"])
            keys, key_codes = _coded(table["key"])
            pairs = {
                (b, k) for b, behavior in enumerate(behaviors) for k, key in enumerate(keys) if is_asked(behavior, key)
            }
            if not pairs:
                continue
            columns = stored.read_row_group(group, columns=["attempt", "step", "time", "value"], use_threads=False)
            attempts = columns["attempt"].to_numpy()
            steps, values = columns["step"].to_numpy(), columns["value"].to_numpy()
            times = columns["time"].cast("int64").to_numpy() / 1e6
            changes = (np.diff(behavior_codes) != 0) | (np.diff(key_codes) != 0) | (np.diff(attempts) != 0)
            edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(steps)]
            for start, end in pairwise(edges):
                pair = int(behavior_codes[start]), int(key_codes[start])
                if pair in pairs:
                    points = Points(steps[start:end], times[start:end], values[start:end])
                    place = (run_id, behaviors[pair[0]], keys[pair[1]])
                    pieces[place][int(attempts[start])].append(points.within(window))
    return {
        place: {attempt: Points.joined(of_attempt) for attempt, of_attempt in sorted(by_attempt.items())}
        for place, by_attempt in pieces.items()
    }


def _groups(metrics: Iterable[Metric]) -> Iterator[list[Part]]:
    """Iterate over the row groups: points of metrics, `ROWS` together, cut where they would be more."""
    group: list[Part] = []
    room = ROWS
    for behavior, key, by_attempt in metrics:
        for attempt, points in by_attempt.items():
            while len(points):
                group.append((behavior, key, attempt, points[:room]))
                points, room = points[room:], room - min(room, len(points))  # noqa: PLW2901
                if not room:
                    yield group
                    group, room = [], ROWS
    if group:
        yield group


def _texts(values: list[str], lengths: list[int]) -> Any:
    """Return a column in which each text stands so many times."""
    import pyarrow as pa  # noqa: PLC0415  # see above

    names, codes = np.unique(values, return_inverse=True)
    return pa.DictionaryArray.from_arrays(np.repeat(codes, lengths).astype(np.int32), names.tolist())


def _coded(column: Any) -> tuple[list[str], NDArray[np.int32]]:
    """Return the names of a column of texts, and the index of each row's name."""
    array = column.combine_chunks()
    return array.dictionary.to_pylist(), array.indices.to_numpy()
