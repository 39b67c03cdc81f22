"""The value by which the best checkpoint is chosen, from its scores and the rule in the run's configuration."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from server.config.run import KeepBest

Scores = Mapping[str, Mapping[str, float]]
"""Behavior (empty for the run as a whole) -> metric -> value."""


def keep_best_of(config: Mapping[str, Any]) -> KeepBest | None:
    """Return what a run's stored configuration says of its best checkpoints."""
    given = (config.get("checkpoint_settings") or {}).get("keep_best")
    return None if given is None else KeepBest.model_validate(given)


def overall_score(rule: KeepBest | None, scores: Scores, returns: Iterable[float | None]) -> float | None:
    """Return how good a checkpoint is, higher is better; None if it has no such score.

    Without a rule it is the mean over the behaviors of their mean episode returns since the checkpoint before.
    """
    if rule is None:
        return _mean(value for value in returns if value is not None)
    behaviors = scores if rule.behavior is None else [rule.behavior]
    values = (scores.get(behavior, {}).get(rule.metric) for behavior in behaviors)
    found = _mean(value for value in values if value is not None)
    return found if found is None or rule.mode == "max" else -found


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
