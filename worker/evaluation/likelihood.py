"""The most likely distribution of results among those with a given mean score.

With results `a_i` of frequencies `f_i`, it is `p_i = f_i / (1 + t (a_i - s))` for the mean `s`, where `t` solves
`sum_i p_i (a_i - s) = 0`; that sum falls in `t`, so that Newton's steps within a bracket find it. A result that has
not been seen yet counts as a thousandth of one: it might still come.
"""

from collections.abc import Sequence
from operator import mul
from typing import Final

UNSEEN: Final = 1e-3
"""Stands for the count of a result that has not been seen."""
STEPS: Final = 100
PRECISION: Final = 1e-12


def most_likely(counts: Sequence[float], mean: float) -> list[float]:
    """Return the probabilities of mean `mean`, 0 to 1 excluded, under which the counts, none of them 0, are likeliest.

    The scores that are counted lie evenly from 0 to 1.
    """
    total, last = sum(counts), len(counts) - 1
    frequencies = [count / total for count in counts]
    distances = [index / last - mean for index in range(len(counts))]
    low, high = -1.0 / distances[-1], -1.0 / distances[0]  # between them every probability is above 0
    tilt = 0.0
    for _ in range(STEPS):
        parts = [distance / (1.0 + tilt * distance) for distance in distances]
        excess = sum(map(mul, frequencies, parts))
        low, high = (tilt, high) if excess > 0.0 else (low, tilt)
        step = excess / sum(frequency * part * part for frequency, part in zip(frequencies, parts, strict=True))
        if abs(step) <= PRECISION * (high - low):
            break
        following = tilt + step  # Newton's; halfway where that leads out
        tilt = following if low < following < high else (low + high) / 2.0
    return [frequency / (1.0 + tilt * distance) for frequency, distance in zip(frequencies, distances, strict=True)]
