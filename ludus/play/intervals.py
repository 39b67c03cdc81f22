"""Bootstrap intervals of a mean (Efron 1979)."""

from collections.abc import Sequence
from typing import Final

import numpy as np

_DRAWS_AT_ONCE: Final = 1_000_000


def mean_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float] | None:
    """Return the percentile interval of the mean of `values`, of which there must be one; None if there is only one.

    The values are drawn again, with replacement, `resamples` times; the interval holds the middle `confidence` of the
    means. Values that are all alike give an interval without width: the sample has shown no spread. One value cannot
    show any.
    """
    sample = np.asarray(values, np.float64)
    if not sample.size:
        raise ValueError("no values, no interval")
    if sample.size == 1:
        return None
    random = np.random.default_rng(seed)
    rows = max(_DRAWS_AT_ONCE // sample.size, 1)
    means = [
        sample[random.integers(sample.size, size=(min(rows, resamples - done), sample.size))].mean(axis=1)
        for done in range(0, resamples, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
