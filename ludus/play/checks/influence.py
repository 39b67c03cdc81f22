"""Whether actions change what follows: the next observation, the reward, or the end of the episode.

If a game ignores an action, the action is independent of everything that follows, given the observation at which it was
chosen. So the test tries to tell the action from what followed: ridge regression on linear and random features (Rahimi
& Recht 2007), fitted on one half of the steps and judged on the other half, in both directions. What the observation
alone tells about the action (a policy is a function of it) is taken off before, by a regression of the same kind; of
discrete choices also by their probabilities: the indicator of a choice divided by its probability has the same mean
at every observation, whatever the policy.

A score is about standard normal, or below, where the action is ignored, and far above where it is not. Scores of
several reviews add up (Stouffer's method).
"""

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ludus.play.checks.steps import Steps
from ludus.protocol.spec import ActionSpec

Matrix = NDArray[np.float64]

FEATURES: Final = 48
"""Random features beside the linear ones."""
MOST_ELEMENTS: Final = 48
"""Elements of the observations that are looked at: those that vary most often."""
LEAST_PAIRS: Final = 256
"""Steps with a successor that a review needs."""
LEAST_PROBABILITY: Final = 0.005
"""Smaller probabilities count as this, so that no single step outweighs all others."""
LEAST_CHANCE: Final = 0.02
"""Mean probability of the choices that are not taken below which a sample says nothing of a branch: an action that the
observation alone determines cannot be told from it."""
MOST_DEVIATIONS: Final = 10.0
"""Standard deviations from the mean at which values are cut off."""
RIDGE: Final = 0.05
NO_SCORE: Final = 3.0
"""A mean score below this (in standard deviations) is none."""


@dataclass
class Score:
    """The evidence about one branch or column."""

    reviews: int = 0
    pairs: int = 0
    total: float = 0.0
    """Sum of the reviews' scores."""

    @property
    def joint(self) -> float:
        """The score of all reviews together."""
        return self.total / sqrt(self.reviews) if self.reviews else 0.0

    def add(self, steps: int, score: float) -> None:
        """Count a review of so many steps."""
        self.reviews, self.pairs, self.total = self.reviews + 1, self.pairs + steps, round(self.total + score, 2)


def action_names(actions: ActionSpec) -> list[str]:
    """Return the names of columns and branches, in the order of `log_probs`."""
    return [
        *(f"continuous column {index}" for index in range(actions.continuous_size)),
        *(f"branch {index}" for index in range(len(actions.discrete_branches))),
    ]


def scores(sample: Steps, actions: ActionSpec) -> dict[str, float]:
    """Return the score of each column and branch, but for those that hardly vary; none if there are too few steps."""
    if sample.count < LEAST_PAIRS:
        return {}
    before, after, last = _pairs(sample)
    varies = np.count_nonzero(after != before, axis=0) + np.count_nonzero(before != before[:1], axis=0)
    elements = np.sort(np.argsort(-varies, kind="stable")[:MOST_ELEMENTS])
    before, after = before[:, elements], after[:, elements]
    ended = np.zeros(sample.count)
    ended[last] = sample.endings
    rewards = sample.rewards
    targets = _targets(sample, actions)
    target = np.concatenate(targets, 1)
    change = after - before
    first = np.roll(last, 1)
    observed = [before, np.where(first[:, None], 0.0, np.roll(change, 1, axis=0))]
    later = np.where(last[:, None], 0.0, np.roll(change, -1, axis=0))  # what an acceleration does to a position
    target -= _predicted(_expanded(np.column_stack(observed)), target)
    agreement = target * _predicted(_expanded(np.column_stack([*observed, change, later, rewards, ended])), target)
    widths = np.cumsum([part.shape[1] for part in targets])[:-1]
    taken = np.exp(sample.log_probs[:, actions.continuous_size :]).mean(0)
    varies_enough = [True] * actions.continuous_size + (1 - taken >= LEAST_CHANCE).tolist()
    parts = zip(action_names(actions), varies_enough, np.split(agreement, widths, axis=1), strict=True)
    by_name: dict[str, float] = {}
    for name, varied, part in parts:
        rows = part.sum(1)
        if varied and (spread := float(rows.std())) >= 1e-12:
            # By how many standard errors the mean is above 0; rounded, since sums may differ in their last bits.
            by_name[name] = round(float(rows.mean()) / spread * sqrt(len(rows)), 2)
    return by_name


def free_steps(sample: Steps, actions: ActionSpec) -> int:
    """Return in how many steps the agent had a choice: a continuous action, or two allowed choices of a branch."""
    if actions.continuous_size or sample.action_masks is None:
        return sample.count
    masks = sample.action_masks
    allowed = [masks[:, first:end].sum(1) for first, end in _bounds(actions)]
    return int((np.stack(allowed) > 1).any(0).sum())


def _bounds(actions: ActionSpec) -> list[tuple[int, int]]:
    """Return for each branch the first of its columns among all choices, and the one after its last."""
    return list(pairwise(np.cumsum((0, *actions.discrete_branches)).tolist()))


def _pairs(sample: Steps) -> tuple[Matrix, Matrix, NDArray[np.bool_]]:
    """Return the observations of all steps, those that followed, and which steps end a segment."""
    lengths = sample.lengths
    ends = lengths.cumsum() - 1
    last = np.zeros(sample.count, np.bool_)
    last[ends] = True
    before, after = [], []
    for now, following in zip(sample.observations, sample.successors, strict=True):
        flat, successors = _flat(now), _flat(following)
        moved = np.empty_like(flat)
        moved[:-1] = flat[1:]
        moved[ends] = successors
        before.append(flat)
        after.append(moved)
    return np.concatenate(before, 1), np.concatenate(after, 1), last


def _flat(values: NDArray[Any]) -> Matrix:
    """Return observations as rows of numbers; pictures as the means of about 8 x 8 fields of each channel."""
    if values.ndim == 4:
        height, width = (max(size // 8, 1) for size in values.shape[2:])
        cut = values[:, :, : values.shape[2] // height * height, : values.shape[3] // width * width]
        shape = (*cut.shape[:2], cut.shape[2] // height, height, cut.shape[3] // width, width)
        values = cut.reshape(shape).mean((3, 5), dtype=np.float64)
    return values.reshape(len(values), -1).astype(np.float64)


def _expanded(values: Matrix) -> Matrix:
    """Return a constant, the values that vary, standardised, and random features of them: rectified projections."""
    deviation = values.std(0)
    varying = deviation > 1e-12 * np.maximum(np.abs(values).max(0), 1e-300)
    scaled = (values[:, varying] - values[:, varying].mean(0)) / deviation[varying]
    features = np.column_stack([np.ones(len(values)), scaled.clip(-MOST_DEVIATIONS, MOST_DEVIATIONS)])
    rng = np.random.default_rng(0)  # the same features in each review: a run stays a function of its seed
    weights = rng.standard_normal((features.shape[1], FEATURES)) * sqrt(2.0 / features.shape[1])
    return np.column_stack([features, np.maximum(features @ weights, 0.0)])


def _targets(sample: Steps, actions: ActionSpec) -> list[Matrix]:
    """Return a matrix for each column and branch: sampled values, or weighted indicators of the choices."""
    columns = sample.continuous.astype(np.float64)
    targets = [columns[:, index : index + 1] for index in range(actions.continuous_size)]
    for branch, (first, end) in enumerate(_bounds(actions)):
        log_prob = sample.log_probs[:, actions.continuous_size + branch].astype(np.float64)
        chosen = np.eye(end - first)[sample.discrete[:, branch]]
        weighted = chosen / np.exp(log_prob).clip(LEAST_PROBABILITY, 1.0)[:, None] - 1.0
        if sample.action_masks is not None:
            weighted *= sample.action_masks[:, first:end]
        targets.append(weighted)
    return targets


def _predicted(known: Matrix, target: Matrix) -> Matrix:
    """Predict each half of the rows by a ridge regression on the other half."""
    predicted = np.empty_like(target)
    half = np.arange(len(known)) % 2 == 0
    for fitted in (half, ~half):
        features = known[fitted]
        penalty = RIDGE * len(features) * np.eye(features.shape[1])
        penalty[0, 0] = 1e-9 * len(features)  # the constant
        weights = np.linalg.solve(features.T @ features + penalty, features.T @ target[fitted])
        predicted[~fitted] = known[~fitted] @ weights
    return predicted
