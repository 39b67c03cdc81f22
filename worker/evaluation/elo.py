"""Elo differences and scores: the conversion between a lead and a share of points.

    score(d) = 1 / (1 + 10^(-d / 400))

is the mean of 1 for a win, 1/2 for a draw and 0 for a loss that a lead of `d` points can expect. It is the *logistic*
Elo of `server.ladders.elo`, without any model of draws.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from server.ladders.elo import SCALE, expected
from worker.evaluation.likelihood import UNSEEN, most_likely


def score_of(difference: float) -> float:
    """Return the score, between 0 and 1, that a lead of so many Elo points can expect."""
    return expected(difference, 0.0)


def difference_of(score: float) -> float | None:
    """Return the lead in Elo points that a score stands for; None for 0 and 1, which no lead explains."""
    return SCALE * math.log10(score / (1.0 - score)) if 0.0 < score < 1.0 else None


class Estimate(NamedTuple):
    """A lead in Elo points and its 95 % interval. An end that is None is unbounded.

    `elo` is None where no lead explains the results: all games were won, or all were lost, or none was played.
    """

    elo: float | None
    low: float | None
    high: float | None


Z_95: Final = 1.959963984540054
"""The normal distribution has 95 % of its mass within so many deviations of its mean."""
_HALVINGS: Final = 30
"""Each halves the stretch of scores in which an end of an interval is sought."""


def estimate(counts: Sequence[int]) -> Estimate:
    """Return the Elo difference that results speak for, with a 95 % interval: that of `score_interval`, translated.

    `counts[k]` results scored `k / (len(counts) - 1)`: losses, draws, wins; or pairs of games by their half points.
    """
    if not sum(counts):
        return Estimate(None, None, None)
    low, high = score_interval(counts)
    return Estimate(difference_of(_mean(counts)), difference_of(low), difference_of(high))


def score_interval(counts: Sequence[int]) -> tuple[float, float]:
    """Return the 95 % score interval of the mean score of results, counted as for `estimate`; there must be one.

    It holds each mean score `s` that a test does not reject: `n (mean - s)^2 <= z^2 var(s)`, where `var(s)` is the
    variance of the most likely distribution of mean `s` (`most_likely`), not that of the results. So it has a width
    where all results are alike, and it holds the true score about as often as it says from a few games on. It is
    Wilson's interval (Probable Inference, the Law of Succession, and Statistical Inference, JASA 22, 1927) where no
    game is drawn, and Tango's (Equivalence Test and Confidence Interval for the Difference in Proportions for the
    Paired-Sample Design, Statistics in Medicine 17, 1998) with draws: there `2 s - 1` is the difference between the
    shares of wins and of losses. It ends at 0 where all games are lost, and at 1 where all are won.
    """
    total, mean = sum(counts), _mean(counts)
    seen = [count or UNSEEN for count in counts]

    def rejected(score: float) -> bool:
        probabilities = most_likely(seen, score)
        variance = sum(share * (index / (len(counts) - 1) - score) ** 2 for index, share in enumerate(probabilities))
        return total * (mean - score) ** 2 > Z_95**2 * variance

    def end(edge: float) -> float:
        """Return the end of the interval between the mean, which is never rejected, and an edge of all scores."""
        if mean == edge:
            return edge
        inside, outside = mean, edge
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2.0
            inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
        return inside

    return end(0.0), end(1.0)


def _mean(counts: Sequence[int]) -> float:
    return sum(index * count for index, count in enumerate(counts)) / (sum(counts) * (len(counts) - 1))
