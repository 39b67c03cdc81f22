"""Points of a metric: packing for storage and thinning for display. Pure arithmetic.

A series is thinned to at most N buckets of (nearly) equal numbers of consecutive points. Each bucket keeps its mean,
its minimum and its maximum, so that no spike disappears and the curve's level stays true for every N; it stands
at its last point's step and time, so that the curve ends where the run is. Choosing single points (every k-th, or
largest-triangle) would hide either the spikes or the level.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

CHUNK_POINTS = 512
"""Points per chunk. An append rewrites the last chunk, 24 bytes a point: half of 12 kB on average."""


@dataclass(frozen=True)
class MetricPoint:
    """One value of one metric."""

    behavior: str
    """Empty for metrics of the run as a whole."""
    key: str
    step: int
    """Agent steps of the behavior (of the run, where there is no behavior) when it was taken."""
    at: float
    """Seconds since 1970-01-01 UTC."""
    value: float


@dataclass(frozen=True)
class Points:
    """Consecutive points of one metric, steps strictly increasing."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def empty(cls) -> Self:
        """Return no points."""
        return cls(np.empty(0, np.int64), np.empty(0), np.empty(0))

    @classmethod
    def of(cls, points: list[MetricPoint]) -> Self:
        """Collect points by step; of several with one step the last one counts."""
        by_step = {point.step: point for point in points}
        ordered = [by_step[step] for step in sorted(by_step)]
        return cls(
            np.array([point.step for point in ordered], np.int64),
            np.array([point.at for point in ordered], np.float64),
            np.array([point.value for point in ordered], np.float64),
        )

    @classmethod
    def unpack(cls, steps: bytes, times: bytes, values: bytes) -> Self:
        """Read the packed form."""
        return cls(np.frombuffer(steps, "<i8"), np.frombuffer(times, "<f8"), np.frombuffer(values, "<f8"))

    def pack(self) -> tuple[bytes, bytes, bytes]:
        """Return steps, times and values as little-endian bytes."""
        return (
            self.steps.astype("<i8").tobytes(),
            self.times.astype("<f8").tobytes(),
            self.values.astype("<f8").tobytes(),
        )

    def __getitem__(self, part: slice) -> "Points":
        return Points(self.steps[part], self.times[part], self.values[part])

    def __add__(self, other: "Points") -> "Points":
        return Points(
            np.concatenate([self.steps, other.steps]),
            np.concatenate([self.times, other.times]),
            np.concatenate([self.values, other.values]),
        )

    def after(self, step: int) -> "Points":
        """Return the points beyond a step."""
        return self[int(np.searchsorted(self.steps, step, side="right")) :]

    def until(self, step: int) -> "Points":
        """Return the points up to a step, inclusive."""
        return self[: int(np.searchsorted(self.steps, step, side="right"))]


@dataclass(frozen=True)
class Series:
    """A metric's history, thinned. All arrays have one entry per bucket."""

    behavior: str
    key: str
    steps: NDArray[np.int64]
    """Of each bucket's last point."""
    times: NDArray[np.float64]
    """Of each bucket's last point."""
    values: NDArray[np.float64]
    """Mean of the bucket's finite values, or NaN where there is none."""
    minima: NDArray[np.float64]
    maxima: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Number of points in each bucket. All 1 when nothing was thinned."""

    @property
    def total(self) -> int:
        """Number of points before thinning."""
        return int(self.counts.sum())


def thin(behavior: str, key: str, points: Points, buckets: int) -> Series:
    """Reduce points to at most `buckets` (>= 1)."""
    count = len(points)
    if count <= buckets:
        ones = np.ones(count, np.int64)
        return Series(behavior, key, points.steps, points.times, points.values, points.values, points.values, ones)
    starts = np.arange(buckets, dtype=np.int64) * count // buckets
    counts = np.diff(np.append(starts, count))
    last = starts + counts - 1
    finite = np.isfinite(points.values)
    numbers = np.add.reduceat(finite, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(finite, points.values, 0.0), starts)
    means = np.divide(sums, numbers, out=np.full(buckets, np.nan), where=numbers > 0)
    return Series(
        behavior,
        key,
        points.steps[last],
        points.times[last],
        means,
        np.fmin.reduceat(points.values, starts),
        np.fmax.reduceat(points.values, starts),
        counts,
    )
