"""The value by which the best checkpoint is chosen, from its scores and the rule in the run's configuration."""

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import Any

from ludus.config.run import KeepBest
from ludus.schemas import ScoredBy

Scores = Mapping[str, Mapping[str, float]]
"""Behavior (empty for the run as a whole) -> metric -> value."""


def keep_best_of(config: Mapping[str, Any]) -> KeepBest | None:
    """Return what a run's stored configuration says of its best checkpoints."""
    given = (config.get("checkpoint_settings") or {}).get("keep_best")
    return None if given is None else KeepBest.model_validate(given)


def overall_score(
    rule: KeepBest | None, scores: Scores, returns: Iterable[float | None], scored_by: Collection[ScoredBy]
) -> tuple[float | None, ScoredBy | None]:
    """Return how good a checkpoint is, higher is better, and by which measurement; None if it has no such score.

    Without a rule it is the mean over the behaviors of their `returns`, which `scored_by` describes.
    """
    if rule is None:
        return _mean(value for value in returns if value is not None), _joined(scored_by)
    behaviors = scores if rule.behavior is None else [rule.behavior]
    values = (scores.get(behavior, {}).get(rule.metric) for behavior in behaviors)
    score = _mean(value for value in values if value is not None)
    if score is None:
        return None, None
    return score if rule.mode == "max" else -score, ScoredBy(kind="metric", metric=rule.metric)


def _joined(measurements: Collection[ScoredBy]) -> ScoredBy | None:
    """Return the measurement of several behaviors together; None without any."""
    if not measurements:
        return None
    kinds = {measurement.kind for measurement in measurements}
    return ScoredBy(
        kind="evaluation" if kinds == {"evaluation"} else "episodes",
        episodes=sum(measurement.episodes or 0 for measurement in measurements),
        from_step=min(measurement.from_step or 0 for measurement in measurements),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
