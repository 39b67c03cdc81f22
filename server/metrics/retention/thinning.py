"""Which points of a metric are kept when it is thinned. Pure arithmetic."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from server.metrics.points import Points


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
    kept = {0, count - 1}
    for start, end in pairwise(edges):
        kept |= {int(start + np.argmin(low[start:end])), int(start + np.argmax(high[start:end]))}
    return np.array(sorted(kept), np.int64)
