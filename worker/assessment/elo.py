"""Elo differences and scores: how much stronger somebody is, and what share of the points that is worth.

    score(d) = 1 / (1 + 10^(-d / 400))

is the mean of 1 for a win, 1/2 for a draw and 0 for a loss that a lead of `d` points can expect. It is the *logistic*
Elo of `server.ladders.elo`, without any model of draws.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from server.ladders.elo import SCALE, expected


def score_of(difference: float) -> float:
    """Return the score, between 0 and 1, that a lead of so many Elo points can expect."""
    return expected(difference, 0.0)


def difference_of(score: float) -> float | None:
    """Return the lead in Elo points that a score stands for; None for 0 and 1, which no lead explains."""
    return SCALE * math.log10(score / (1.0 - score)) if 0.0 < score < 1.0 else None


class Estimate(NamedTuple):
    """A lead in Elo points, and the interval that it is believed to lie in. None: beyond what the games can tell."""

    elo: float | None
    low: float | None
    high: float | None


Z_95 = 1.959963984540054
"""The normal distribution has 95 % of its mass within so many deviations of its mean."""


def estimate(counts: Sequence[float]) -> Estimate:
    """Return the Elo difference that results speak for, with a 95 % interval.

    `counts[k]` results scored `k / (len(counts) - 1)`: losses, draws, wins; or pairs of games by their half points. The
    interval is that of the mean score (normal, with the results' own variance), translated at both ends.
    """
    total = sum(counts)
    if not total:
        return Estimate(None, None, None)
    scores = [index / (len(counts) - 1) for index in range(len(counts))]
    mean = sum(count * score for count, score in zip(counts, scores, strict=True)) / total
    variance = sum(count * (score - mean) ** 2 for count, score in zip(counts, scores, strict=True)) / total
    margin = Z_95 * math.sqrt(variance / total)
    return Estimate(difference_of(mean), difference_of(max(mean - margin, 0.0)), difference_of(min(mean + margin, 1.0)))
