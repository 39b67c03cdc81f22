"""Points of a metric: packing for storage, thinning for display and for good. Pure arithmetic.

A series is thinned to at most N buckets of (nearly) equal numbers of consecutive points. Each bucket keeps its mean,
its minimum and its maximum, so that no spike disappears and the curve's level stays true for every N; it stands
at its last point's step and time, so that the curve ends where the run is. Choosing single points (every k-th, or
largest-triangle) would hide either the spikes or the level.

Series that are compared have common edges instead: bucket i covers the same steps in each, so that the mean and the
band of a group of runs are sums over columns.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ludus.metric_keys import full_key

CHUNK_POINTS = 512
"""Points of a full chunk: 24 bytes each, 12 kB together."""

SMALLEST_WEIGHT = 1e-18
"""A value with a smaller weight does not change a sum of doubles."""
NO_LIMIT = 2**62
"""No metric has a step beyond it."""

_LISTED = re.compile(r"(?:(?P<behavior>[^:@]+):)?(?P<key>[^:@]+)(?:@(?P<which>last|max|min))?")


@dataclass(frozen=True)
class Window:
    """The steps from `first` to `last`, both inclusive."""

    first: int = -1
    last: int = NO_LIMIT


EVERY_STEP = Window()
Place = tuple[str, str, str]
"""Run, behavior and key of a metric."""


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

    @classmethod
    def joined(cls, parts: Sequence["Points"]) -> Self:
        """Join consecutive parts."""
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("steps", "times", "values"))
        return cls(*columns) if parts else cls.empty()

    def after(self, step: int) -> "Points":
        """Return the points beyond a step."""
        return self[int(np.searchsorted(self.steps, step, side="right")) :]

    def increasing(self) -> "Points":
        """Return the points without those whose step is not beyond all steps before them."""
        before = np.maximum.accumulate(np.append(-NO_LIMIT, self.steps))[:-1]
        new = self.steps > before
        return self if new.all() else Points(self.steps[new], self.times[new], self.values[new])

    def extremes(self) -> tuple[float | None, float | None]:
        """Return the highest and the lowest of the values that are finite numbers; None without any."""
        finite = self.values[np.isfinite(self.values)]
        return (float(finite.max()), float(finite.min())) if len(finite) else (None, None)

    def within(self, window: Window) -> "Points":
        """Return the points in a window."""
        return self[
            int(np.searchsorted(self.steps, window.first)) : int(np.searchsorted(self.steps, window.last, side="right"))
        ]


@dataclass(frozen=True)
class NewestValue:
    """The newest value of a metric, and its extremes."""

    run_id: str
    behavior: str
    """Empty for metrics of the run as a whole."""
    key: str
    step: int
    value: float | None
    """None where it is no finite number; the history has the exact value."""
    at: float
    """Seconds since 1970-01-01 UTC."""
    highest: float | None
    """Of all points that count; None where none is a finite number."""
    lowest: float | None

    @classmethod
    def of(cls, run_id: str, behavior: str, key: str, points: Points) -> Self:
        """Return that of at least one point."""
        value = float(points.values[-1])
        newest = (int(points.steps[-1]), value if math.isfinite(value) else None, float(points.times[-1]))
        return cls(run_id, behavior, key, *newest, *points.extremes())

    def joined(self, other: "NewestValue") -> "NewestValue":
        """Return the newer one of two of a metric, with the extremes of both."""
        newer = other if other.step > self.step else self
        highest = max((value.highest for value in (self, other) if value.highest is not None), default=None)
        lowest = min((value.lowest for value in (self, other) if value.lowest is not None), default=None)
        return replace(newer, highest=highest, lowest=lowest)


@dataclass(frozen=True)
class ListedMetric:
    """The number to show: the newest, the highest or the lowest of a key.

    Where several behaviors of a run have the key and none is named, the highest of theirs counts (with `min` the
    lowest).
    """

    text: str
    """As it was asked for."""
    behavior: str | None
    key: str
    which: str
    """`last`, `max` or `min`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what was asked for. Raises ValueError."""
        match = _LISTED.fullmatch(text)
        if match is None or not text.isprintable():
            raise ValueError(f"{text!r} is not a metric; write [BEHAVIOR:]KEY, with @max or @min for the extremes")
        return cls(text, match["behavior"], full_key(match["key"]), match["which"] or "last")

    @property
    def choose(self) -> Callable[[float, float], float]:
        """Whether the number of one behavior goes before that of another."""
        return min if self.which == "min" else max


@dataclass(frozen=True)
class Series:
    """A metric's history in buckets. All arrays have one entry per bucket."""

    run_id: str
    behavior: str
    key: str
    steps: NDArray[np.int64]
    """Of each bucket's last point; with common edges, the last step that the bucket covers."""
    times: NDArray[np.float64]
    """Of each bucket's last point; NaN where there is none."""
    values: NDArray[np.float64]
    """Mean of the bucket's finite values, or NaN where there is none."""
    minima: NDArray[np.float64]
    maxima: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Number of points in each bucket. All 1 when nothing was thinned."""
    smoothed: NDArray[np.float64] | None = None
    """Smoothed value at each bucket's last point, NaN where there is none; None where the series is not smoothed."""

    @property
    def total(self) -> int:
        """Number of points before thinning."""
        return int(self.counts.sum())

    @classmethod
    def thin(cls, run_id: str, behavior: str, key: str, points: Points, buckets: int) -> Self:
        """Reduce points to at most `buckets` (>= 1) of (nearly) equal counts; so few as they are, to one for each."""
        count = len(points)
        first = np.arange(min(buckets, count), dtype=np.int64) * count // max(1, min(buckets, count))
        starts = np.append(first, count)
        return cls(run_id, behavior, key, points.steps[starts[1:] - 1], *_reduced(points, starts))

    @classmethod
    def between(cls, run_id: str, behavior: str, key: str, points: Points, edges: NDArray[np.int64]) -> Self:
        """Put points into buckets between edges: bucket i has those beyond `edges[i]`, up to `edges[i + 1]`."""
        starts = np.searchsorted(points.steps, edges, side="right")
        return cls(run_id, behavior, key, edges[1:], *_reduced(points, starts))

    def smooth(self, history: Points, smoothing: float) -> Self:
        """Add smoothed values, of the metric's whole history up to each bucket: they are the same in every window."""
        if not len(history):
            return replace(self, smoothed=np.full(len(self.steps), np.nan))
        last = np.searchsorted(history.steps, self.steps, side="right") - 1
        smooth_values = smoothed(history.values, smoothing)[last]
        return replace(self, smoothed=np.where(self.counts > 0, smooth_values, np.nan))


def smoothed(values: NDArray[np.float64], smoothing: float) -> NDArray[np.float64]:
    """Return the exponential moving average of values without its bias to the start (Kingma and Ba 2015, section 3).

    With s = `smoothing`, 0 to below 1, number n is `sum(s^(n-i) x_i) / sum(s^(n-i))` over the finite x_i with i <= n.
    It depends on earlier values only, so new ones never change the past. NaN before the first finite value.
    """
    finite = np.isfinite(values)
    sums, weights = values[finite], np.ones(int(finite.sum()))
    distance, decay = 1, smoothing
    while distance < len(sums) and decay > SMALLEST_WEIGHT:  # sums over 1, 2, 4, ... values (Hillis and Steele 1986)
        for column in (sums, weights):
            column[distance:] = column[distance:] + decay * column[:-distance]
        distance, decay = 2 * distance, decay * decay
    return np.append(np.nan, sums / weights).take(np.cumsum(finite))


def common_edges(histories: Sequence[Points], buckets: int) -> NDArray[np.int64]:
    """Return the edges of at most `buckets` (>= 1) that cover all points of several histories.

    Each step has a bucket of its own if there are so few. Otherwise all buckets have the same width, up to rounding.
    """
    filled = [history.steps for history in histories if len(history)]
    if not filled:
        return np.zeros(1, np.int64)
    if max(map(len, filled)) <= buckets:  # else there are more steps than buckets in one history already
        steps = np.unique(np.concatenate(filled))
        if len(steps) <= buckets:
            return np.append(steps[0] - 1, steps)
    first, last = min(steps[0] for steps in filled), max(steps[-1] for steps in filled)
    return np.linspace(first - 1, last, buckets + 1).astype(np.int64)


def _reduced(
    points: Points, starts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return times, means, minima, maxima and counts of buckets: bucket i has the points from starts[i] on, before
    starts[i + 1]."""
    counts = np.diff(starts)
    times, means, minima, maxima = (np.full(len(counts), np.nan) for _ in range(4))
    filled = counts > 0
    # The points between the first and the last start are in a bucket: `reduceat` over the filled ones misses none.
    first, values = starts[:-1][filled], points.values[: starts[-1]]
    if len(first):
        finite = np.isfinite(values)
        numbers = np.add.reduceat(finite, first, dtype=np.int64)
        sums = np.add.reduceat(np.where(finite, values, 0.0), first)
        times[filled] = points.times[starts[1:][filled] - 1]
        means[filled] = np.divide(sums, numbers, out=np.full(len(first), np.nan), where=numbers > 0)
        minima[filled] = np.fmin.reduceat(values, first)
        maxima[filled] = np.fmax.reduceat(values, first)
    return times, means, minima, maxima, counts


def thinned(by_attempt: Mapping[int, Points], before: float, limit: int, *, again: bool) -> dict[int, Points] | None:
    """Return a metric without most of its points that are older than a time; None where they are few enough.

    At most `limit` (>= 4) of them stay. `again` says that newer ones will be old later: then only half as many stay, so
    that they are thinned again after that many points, not after each.
    """
    attempts = list(by_attempt)
    points = Points.joined([by_attempt[attempt] for attempt in attempts])
    of_attempt = np.repeat(attempts, [len(by_attempt[attempt]) for attempt in attempts])
    # Clocks of hosts differ: a point is as old as the newest one before it.
    old = int(np.searchsorted(np.maximum.accumulate(points.times), before)) if len(points) else 0
    if old <= limit:
        return None
    indexes = np.append(keep(points.values[:old], limit // 2 if again else limit), np.arange(old, len(points)))
    fewer = Points(points.steps[indexes], points.times[indexes], points.values[indexes])
    return {
        attempt: Points(fewer.steps[part], fewer.times[part], fewer.values[part])
        for attempt in attempts
        for part in [of_attempt[indexes] == attempt]
    }


def keep(values: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
    """Return the indices, ascending, of at most `limit` (>= 2) values that keep the curve's outline.

    The first and the last one, and the lowest and the highest finite one of each of equally long parts between them: so
    the extremes of the whole are among them, and no spike disappears.
    """
    count = len(values)
    if count <= limit:
        return np.arange(count)
    edges = np.linspace(0, count, (limit - 2) // 2 + 1).astype(np.int64)
    low, high = np.where(np.isfinite(values), values, np.inf), np.where(np.isfinite(values), values, -np.inf)
    indexes = {0, count - 1}
    for start, end in pairwise(edges):
        indexes |= {int(start + np.argmin(low[start:end])), int(start + np.argmax(high[start:end]))}
    return np.array(sorted(indexes), np.int64)
