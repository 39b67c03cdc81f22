"""Is one sample of scores worse than another? One-sided tests of the difference of means."""

import itertools
from collections.abc import Sequence

import numpy as np

from ludus.statistics import as_scores, mean, resampled

RESAMPLES = 20_000


def probability_of_worse(ours: Sequence[float], theirs: Sequence[float], margin: float, seed: int = 0) -> float:
    """Return how sure it is that our mean lies more than `margin` below theirs, between 0 and 1.

    Both samples are resampled with replacement; the answer is the share of resamples whose difference of means is below
    `-margin` (Efron & Tibshirani 1993, chapter 16).
    """
    groups = [as_scores(ours), as_scores(theirs)]
    differences = resampled(groups, lambda own, other: mean(own) - mean(other), resamples=RESAMPLES, seed=seed)
    return float(np.mean(differences < -margin))


def chance_of_as_much_worse(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the p-value of the exact permutation test: how often our mean is as far below theirs, or farther, when the
    scores are dealt to the two sides by chance, over all ways to deal them (Fisher 1935). Above 0.05: not worse.
    """
    scores, own = np.array([*ours, *theirs], np.float64), len(ours)
    dealt = np.array(list(itertools.combinations(range(len(scores)), own)))
    return float(np.mean(scores[dealt].sum(1) <= scores[:own].sum() + 1e-9))
