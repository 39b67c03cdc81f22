"""Is one policy stronger than another? A sequential probability ratio test, which stops as soon as it knows.

Wald's test (Sequential Tests of Statistical Hypotheses, 1945) weighs two hypotheses on the candidate's lead against
each other, H0: `elo0` and H1: `elo1`. After every result the log-likelihood ratio of both,

    LLR = log P(results | H1) / P(results | H0),

is compared with two bounds: at or above `log((1 - beta) / alpha)` H1 is accepted (pass), at or below
`log(beta / (1 - alpha))` H0 (fail); between them another result is needed. A candidate whose lead is `elo0` or less
passes with a probability of about `alpha` at most, one whose lead is `elo1` or more fails with one of about `beta`.

A lead `d` only says what the mean score is, `1 / (1 + 10^(-d / 400))`: the mean of 1 for a win, 1/2 for a draw and 0
for a loss that it can expect (the *logistic* Elo of `server.ladders.elo`, without any model of draws). It does not say
how many games are drawn, nor how alike the two games of a pair are. So each hypothesis is represented by the most
likely distribution of results among those with its mean (the generalized SPRT; Van den Bergh, "A Practical Introduction
to the GSPRT", as Fishtest applies it). Results are *trinomial*: loss, draw, win, each game by itself; or *pentanomial*:
what a pair of games with the same seed and swapped sides brought together, 0 to 4 half points. Openings that favour a
side then cancel out within a pair, and the test needs fewer games.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final, Literal, NamedTuple

from server.ladders.elo import SCALE, expected

UNSEEN: Final = 1e-3
"""Stands for the count of a result that has not been seen: it might still come."""
STEPS: Final = 100
PRECISION: Final = 1e-12


def most_likely(counts: Sequence[float], mean: float) -> list[float]:
    """Return the probabilities of mean `mean`, 0 to 1 excluded, under which the counts, none of them 0, are likeliest.

    The scores `a_i` that are counted, with frequencies `f_i`, lie evenly from 0 to 1. The probabilities are `p_i = f_i
    / (1 + t (a_i - s))` for the mean `s`, where `t` solves `sum_i p_i (a_i - s) = 0`; that sum falls in `t`, so that
    Newton's steps within a bracket find it.
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
    positive = [count or UNSEEN for count in counts]

    def rejected(score: float) -> bool:
        probabilities = most_likely(positive, score)
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


@dataclass(frozen=True)
class SPRT:
    """The test; it has no state of its own: results come in as counts."""

    elo0: float
    """Lead of the candidate under H0, in Elo points."""
    elo1: float
    """Lead under H1; above `elo0`."""
    alpha: float = 0.05
    """Probability that a candidate of lead `elo0` passes."""
    beta: float = 0.05
    """Probability that a candidate of lead `elo1` fails."""

    @property
    def lower(self) -> float:
        """The LLR at which the candidate has failed."""
        return math.log(self.beta / (1.0 - self.alpha))

    @property
    def upper(self) -> float:
        """The LLR at which the candidate has passed."""
        return math.log((1.0 - self.beta) / self.alpha)

    def llr(self, counts: Sequence[int]) -> float:
        """Return the log-likelihood ratio of H1 against H0, 0 without results; they are counted as for `estimate`."""
        if not sum(counts):
            return 0.0
        positive = [count or UNSEEN for count in counts]
        under0, under1 = (most_likely(positive, score_of(lead)) for lead in (self.elo0, self.elo1))
        return sum(count * math.log(p1 / p0) for count, p0, p1 in zip(positive, under0, under1, strict=True))

    def decide(self, counts: Sequence[int]) -> Literal["pass", "fail"] | None:
        """Return the decision; None: more results are needed."""
        llr = self.llr(counts)
        return "pass" if llr >= self.upper else "fail" if llr <= self.lower else None
