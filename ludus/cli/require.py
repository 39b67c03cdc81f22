"""Requirements on a run's metrics (`ludus.cli.options.Requirement`): whether a run meets them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ludus.cli.options import Requirement
from ludus.metric_keys import SHORT_KEYS
from ludus.schemas import Metric, Run

_GROUPS = frozenset({"Environment", "Evaluation", "Losses", "Performance", "Policy", "Resources", "Self-play"})
"""Groups of metrics that the trainer records (docs/metrics.md); all others are the game's own."""


@dataclass(frozen=True)
class Verdict:
    """The evaluation of a requirement."""

    requirement: Requirement
    met: bool
    reason: str
    """The value that was found, or why there is none."""
    judged: bool = True
    """Whether the requirement names one metric that the run has."""
    later: bool = False
    """Whether a run that goes on may record the metric later."""


def evaluate(requirement: Requirement, run: Run, metrics: Sequence[Metric]) -> Verdict:
    """Compare a requirement with a run's newest values."""
    if requirement.key == "step" and requirement.behavior is None:
        return _verdict(requirement, float(run.step))
    fitting = [metric for metric in metrics if metric.key == requirement.key]
    if requirement.behavior is not None:
        fitting = [metric for metric in fitting if metric.behavior == requirement.behavior]
    if not fitting:
        reason = unknown_metric(requirement.behavior, requirement.key, metrics, "step")
        return Verdict(requirement, met=False, reason=reason, judged=False)
    if len(fitting) > 1:
        names = ", ".join(metric.behavior for metric in fitting)
        reason = f"several behaviors have it ({names}); write BEHAVIOR:KEY"
        return Verdict(requirement, met=False, reason=reason, judged=False)
    return _verdict(requirement, fitting[0].value)


def early_verdicts(requirements: Sequence[Requirement], run: Run, metrics: Sequence[Metric]) -> list[Verdict]:
    """Return verdicts on requirements whose behaviors have a first summary, or are not of the run at all.

    A metric in a group of the trainer's (`Losses/Value Loss`) may come later, as rewards do with the first episode that
    ends.
    """
    began = {metric.behavior for metric in metrics if metric.behavior}
    config = run.config or {}
    fixed = None if config.get("default_settings") else set(config.get("behaviors") or {})
    verdicts = []
    for requirement in requirements:
        behavior = requirement.behavior
        misnamed = behavior is not None and fixed is not None and behavior not in fixed
        if misnamed or (behavior in began if behavior is not None else began):
            later = not misnamed and requirement.key.partition("/")[0] in _GROUPS
            verdicts.append(replace(evaluate(requirement, run, metrics), later=later))
    return verdicts


def unknown_metric(behavior: str | None, key: str, metrics: Sequence[Metric], *further: str) -> str:
    """Return a sentence about a key that a run does not have for a behavior; the rest is that of `no_metric`."""
    behaviors = sorted({metric.behavior for metric in metrics if metric.behavior})
    if behavior is not None and behavior not in behaviors:
        return f"no metrics of a behavior {behavior!r}; the run has {', '.join(behaviors) or 'none'}"
    return no_metric(key, metrics, *further)


def no_metric(key: str, metrics: Sequence[Metric], *further: str) -> str:
    """Return a sentence about a key that a run with these metrics does not have; `further` keys could be meant, too."""
    keys = sorted({metric.key for metric in metrics})
    shorts = [short for short, full in SHORT_KEYS.items() if full in keys]
    close = get_close_matches(key, [*shorts, *further, *keys], n=1)
    advice = f"did you mean {close[0]!r}? " if close else ""
    return f"no such metric; {advice}the run has {', '.join(keys) or 'none'}"


def _verdict(requirement: Requirement, actual: float | None) -> Verdict:
    if actual is None:
        return Verdict(requirement, met=False, reason="the newest value is not a number")
    return Verdict(requirement, requirement.holds(actual), f"it is {actual:g}")
