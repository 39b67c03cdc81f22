"""What the scores of several runs say: estimates, their intervals, and whether one group of runs is better.

Estimates are those of the library rliable (Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical
Precipice, 2021, arXiv 2108.13264). Scores have the shape (..., runs, tasks): a row for each run, which has a seed of
its own, and a column for each task. Axes in front of them are resamples, and stay. Scores of several tasks must have
one scale: each task counts as much as any other.

Intervals are percentiles of a bootstrap (Efron 1979), stratified by task as in rliable: runs are drawn again in each
task by itself.

A comparison is about the gain of a group, the difference of the interquartile means. A claim about it ("the gain is
above the margin") holds where two conditions do:

- the bootstrap interval of the gain lies on that side of the margin, and
- Mann and Whitney's exact test, of the scores moved by the margin, has a p-value of at most half of `1 - confidence`.

The second one is there because percentile intervals of few seeds are too narrow: those of 95 % exclude 0 for 21 % of
the pairs of groups of three runs that do not differ, for 8 % of those of five (normal scores, simulated). With the
test, nothing is called better with fewer than four seeds of each.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES: Final = 10_000
_DRAWS_AT_ONCE: Final = 1_000_000
POWER: Final = 0.8
"""Probability for which `Comparison.more_seeds` is computed; 0.63 to 0.83 in simulations of 4 to 17 seeds of each."""
MOST_SEEDS: Final = 100
"""Beyond so many more seeds of a group a number would be no advice."""
EXACT_RUNS: Final = 100
"""Up to so many runs in both groups together the p-value is exact; beyond, that of the normal distribution."""


def as_scores(values: Sequence[float] | Floats) -> Floats:
    """Return scores of one task, one for each run, or a matrix (runs, tasks), as a matrix.

    Raises ValueError where there is no score, where they have another shape, and where one is not finite.
    """
    scores = np.asarray(values, np.float64)
    scores = scores[:, None] if scores.ndim == 1 else scores
    if scores.ndim != 2:
        raise ValueError(f"scores have the shape (runs, tasks), not {scores.shape}")
    if not scores.size:
        raise ValueError("there are no scores")
    if not np.isfinite(scores).all():
        raise ValueError("a score is not a finite number")
    return scores


def mean(scores: Floats) -> Floats:
    """Return the mean over runs and tasks, of the shape (...)."""
    means: Floats = scores.mean(axis=(-2, -1))
    return means


def interquartile_mean(scores: Floats) -> Floats:
    """Return the mean of the middle half of all runs and tasks together (IQM), of the shape (...).

    A quarter of the scores, rounded down, is left out at each end: of up to three scores none is, of five one.
    """
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = ordered.shape[-1] // 4
    means: Floats = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
    return means


def probability_of_improvement(scores: Floats, others: Floats) -> Floats:
    """Return how probable it is that a run of `scores` is higher than one of `others`, 0 to 1, of the shape (...).

    This is the share of pairs in which it is, with half of the pairs that are equal, as the mean over the tasks: the
    statistic of Mann and Whitney's test, divided by the number of pairs. The groups may have different numbers of runs.
    """
    # One run of the others at a time: all pairs of all resamples would take too much memory.
    lead = sum(np.sign(scores - others[..., run : run + 1, :]).mean(axis=(-2, -1)) for run in range(others.shape[-2]))
    return np.asarray(0.5 + 0.5 * lead / others.shape[-2])


def performance_profile(scores: Floats, thresholds: Floats) -> Floats:
    """Return the share of runs and tasks whose score is above each threshold, of the shape (..., thresholds)."""
    return np.stack([(scores > threshold).mean(axis=(-2, -1)) for threshold in thresholds], axis=-1)


def resampled(
    groups: Sequence[Floats], statistic: Callable[..., Floats], *, resamples: int = RESAMPLES, seed: int = 0
) -> Floats:
    """Return a statistic of each resample, of the shape (resamples, ...); the same for the same `seed`.

    `groups` are matrices (runs, tasks). A resample has as many runs of each group as there are, drawn with replacement,
    independently in each group and in each task. `statistic` takes an array (resamples, runs, tasks) for each group,
    and returns one of the shape (resamples, ...).
    """
    random = np.random.default_rng(seed)
    rows = max(_DRAWS_AT_ONCE // max(group.size for group in groups), 1)
    parts = []
    for done in range(0, resamples, rows):
        drawn = []
        for group in groups:
            runs = random.integers(len(group), size=(min(rows, resamples - done), *group.shape))
            drawn.append(group[runs, np.arange(group.shape[1])])
        parts.append(statistic(*drawn))
    return np.concatenate(parts)


def percentiles(values: Floats, confidence: float) -> Floats:
    """Return the ends of the middle `confidence` (above 0, below 1) of resamples (resamples, ...): (2, ...)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, unlike {confidence:g}")
    return np.asarray(np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0))


def interval(
    scores: Sequence[float] | Floats,
    statistic: Callable[[Floats], Floats],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Floats | None:
    """Return the percentile interval of a statistic of runs, (2, ...): its lower and its upper end.

    `scores` are those of one task, or a matrix (runs, tasks); `statistic` is an estimate of them. Runs that are all
    alike give an interval without width: they have shown no spread. One run cannot show any: None. Raises ValueError
    for scores that are not finite, and without any.
    """
    matrix = as_scores(scores)
    if len(matrix) == 1:
        return None
    return percentiles(resampled([matrix], statistic, resamples=resamples, seed=seed), confidence)


def mean_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """Return the `interval` of the mean of `values`, of which there must be one; None if there is only one."""
    ends = interval(values, mean, confidence=confidence, resamples=resamples, seed=seed)
    return None if ends is None else (float(ends[0]), float(ends[1]))


Verdict = Literal["better", "worse", "same", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """A number from runs, and its interval."""

    value: float
    low: float | None
    """None where a group has one run, which shows no spread; the same for `high`."""
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """What the scores say about group B against group A."""

    verdict: Verdict
    """`better` or `worse`: the gain of B is above the margin, or below minus the margin; `same`: it is between them."""
    not_worse: bool
    """Whether the gain of B is above minus the margin; also true of some that are `undecided`."""
    a: Estimate
    """Interquartile mean of A."""
    b: Estimate
    gain: Estimate
    """By how much B is better: the difference of the interquartile means, negative where B is worse."""
    probability: Estimate
    """Probability that a run of B is better than one of A, with half of the ties (`probability_of_improvement`)."""
    p_value: float
    """Of Mann and Whitney's two-sided test: how often runs that do not differ are as far apart, or farther."""
    more_seeds: tuple[int, int] | None
    """Further seeds of A and of B that would settle an undecided question, in about `POWER` of all cases if gain and
    spread stay as measured; where a group has one run, whose spread is unknown, the fewest that can settle any. None:
    more than `MOST_SEEDS`."""


def compare_groups(
    a: Sequence[float] | Floats,
    b: Sequence[float] | Floats,
    *,
    margin: float = 0.0,
    confidence: float = 0.95,
    higher_is_better: bool = True,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare the scores of group B with those of group A, each one for each run, or a matrix (runs, tasks).

    `margin`, 0 or more, is the largest gain that does not matter; `confidence` is that of intervals and claims. The
    answer is the same for the same `seed`. Raises ValueError for scores that `as_scores` refuses, groups of different
    tasks, and numbers out of range.
    """
    sign = 1.0 if higher_is_better else -1.0
    # A higher one is better. Sorted, because their order must not decide what is drawn.
    scores = [np.sort(as_scores(group) * sign, axis=0) for group in (a, b)]
    if scores[0].shape[1] != scores[1].shape[1]:
        raise ValueError(f"A has {scores[0].shape[1]} tasks, B has {scores[1].shape[1]}")
    if not 0.0 <= margin < math.inf:
        raise ValueError(f"a margin is a number from 0 on, unlike {margin:g}")

    def statistics(of_a: Floats, of_b: Floats) -> Floats:
        means = interquartile_mean(of_a), interquartile_mean(of_b)
        return np.stack([*means, means[1] - means[0], probability_of_improvement(of_b, of_a)], axis=-1)

    measured = statistics(*scores)
    draws = resampled(scores, statistics, resamples=resamples, seed=seed)
    lows, highs = percentiles(draws, confidence)
    spread = [len(group) > 1 for group in scores]
    both = all(spread)
    mean_a, mean_b, gain, probability = (
        Estimate(float(value), *((float(low), float(high)) if known else (None, None)))
        for value, low, high, known in zip(measured, lows, highs, [*spread, both, both], strict=True)
    )

    def holds(better: Floats, worse: Floats, least: float, low: float) -> bool:
        """Whether a gain is above `least`; `low` is the lower end of its interval."""
        return both and bool(low > least) and rank_test(better - least, worse) <= (1.0 - confidence) / 2.0

    group_a, group_b = scores
    not_worse = holds(group_b, group_a, -margin, lows[2])
    not_better = holds(group_a, group_b, -margin, -highs[2])
    verdict: Verdict = "undecided"
    if holds(group_b, group_a, margin, lows[2]):
        verdict = "better"
    elif holds(group_a, group_b, margin, -highs[2]):
        verdict = "worse"
    elif not_worse and not_better:
        verdict = "same"
    more_seeds: tuple[int, int] | None = (0, 0)
    if verdict == "undecided":
        needed = _needed(scores, draws[:, :2].var(axis=0), abs(abs(gain.value) - margin), confidence)
        more = tuple(max(math.ceil(needed) - len(group), 0) for group in scores) if needed < math.inf else ()
        more_seeds = (more[0], more[1]) if more and max(more) <= MOST_SEEDS else None
    if sign < 0.0:
        mean_a, mean_b = (
            Estimate(-estimate.value, *(None if end is None else -end for end in (estimate.high, estimate.low)))
            for estimate in (mean_a, mean_b)
        )
    p_value = min(1.0, 2.0 * min(rank_test(group_b, group_a), rank_test(group_a, group_b)))
    return Comparison(verdict, not_worse, mean_a, mean_b, gain, probability, p_value, more_seeds)


def _needed(scores: Sequence[Floats], variances: Floats, distance: float, confidence: float) -> float:
    """Return how many runs each group needs to settle a question that these do not settle; infinity if none do.

    `variances` are those of the resampled interquartile means, `distance` is that of the gain from the nearest margin.
    A mean of n runs has the variance s^2 / n, and its resamples (n - 1) / n of that. As in Welch's test, those of both
    groups add up, and the interval's end keeps to its side with the probability `POWER` where the distance is as many
    standard deviations as the normal quantiles of `confidence` and of `POWER` together. Small groups need a little more
    (Guenther, Sample Size Formulas for Normal Theory T Tests, The American Statistician 35, 1981).
    """
    fewest = next(count for count in range(2, 1000) if 2 / math.comb(2 * count, count) <= 1.0 - confidence)
    runs = [len(group) for group in scores]
    if min(runs) == 1:
        return fewest
    if not distance:
        return math.inf
    of_one_run = sum(variance * count * count / (count - 1) for variance, count in zip(variances, runs, strict=True))
    normal = NormalDist()
    quantile = normal.inv_cdf((1.0 + confidence) / 2.0)
    needed = of_one_run * ((quantile + normal.inv_cdf(POWER)) / distance) ** 2 + quantile**2 / 4.0
    return float(max(needed, fewest, min(runs) + 1))


def rank_test(scores: Floats, others: Floats) -> float:
    """Return the one-sided p-value of Mann and Whitney's test, that `scores` (runs, tasks) are higher than `others`.

    It is the share of all ways to deal the scores of each task to the two groups in which the sum of the ranks of the
    first one is as high, or higher (Mann & Whitney 1947; ties have their mean rank). From more than `EXACT_RUNS` on the
    sum is taken as normal, with the variance that it has over these ways.
    """
    count, total = len(scores), len(scores) + len(others)
    observed, expected, variance = 0, 0.0, 0.0
    probabilities = np.ones(1)  # of each sum of ranks, over the tasks so far
    for task in range(scores.shape[1]):
        pooled = np.concatenate([scores[:, task], others[:, task]])
        ordered = np.sort(pooled)
        # Twice the mean rank of equal scores, so that it is a whole number.
        ranks = np.searchsorted(ordered, pooled, "left") + np.searchsorted(ordered, pooled, "right") + 1
        observed += int(ranks[:count].sum())
        expected += count * (total + 1)
        variance += count * len(others) / total * float(ranks.var(ddof=1))
        if total <= EXACT_RUNS:
            # ways[k, s]: in how many ways k of the scores so far have ranks with the sum s.
            ways = np.zeros((count + 1, int(np.sort(ranks)[-count:].sum()) + 1))
            ways[0, 0] = 1.0
            for rank in ranks:
                ways[1:, rank:] += ways[:-1, :-rank]
            probabilities = np.convolve(probabilities, ways[-1] / ways[-1].sum())
    if total <= EXACT_RUNS:
        return float(min(probabilities[observed:].sum(), 1.0))
    if not variance:
        return 1.0
    # The sums are 2 apart where no scores are equal: half a step is taken off.
    return 1.0 - NormalDist(expected, math.sqrt(variance)).cdf(observed - 1)
