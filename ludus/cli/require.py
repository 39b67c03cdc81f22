"""Requirements on a run's metrics: `reward>=475`, `Striker:Environment/Episode Length < 200`, `step>=10000`.

Short names are those of `ludus.metric_keys`; `step` is the run's agent steps. A behavior's name before a colon selects
its metric; without one the metric of the only behavior that has it is used.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ludus.metric_keys import SHORT_KEYS, full_key

if TYPE_CHECKING:  # `ludus simulate` needs this module and no resources, which take long to import
    from ludus.schemas import Metric, Run

_GROUPS = frozenset({"Environment", "Evaluation", "Losses", "Performance", "Policy", "Resources", "Self-play"})
"""Groups of metrics that the trainer records (docs/metrics.md); all others are the game's own."""
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(
    r"\s*(?:(?P<behavior>[^:<>!]+):)?\s*(?P<key>[^:<>=!]+?)\s*(?P<operator>>=|<=|!=|==|=|>|<)(?P<value>[^<>=!]+)"
)


@dataclass(frozen=True)
class Requirement:
    """`[Behavior:]KEY op VALUE`."""

    text: str
    behavior: str | None
    key: str
    operator: str
    value: float

    def holds(self, actual: float) -> bool:
        """Compare. NaN meets no requirement."""
        return actual == actual and _OPERATORS[self.operator](actual, self.value)  # noqa: PLR0124  # false for NaN


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


def parse_requirement(text: str) -> Requirement:
    """Read a requirement. Raises ValueError with a sentence."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a requirement; write for instance 'reward>=475' or 'Striker:reward>=0.8'")
    try:
        value = float(match["value"])
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{match['value'].strip()!r} in {text!r} is not a number")
    behavior = match["behavior"].strip() if match["behavior"] else None
    return Requirement(text.strip(), behavior, full_key(match["key"]), match["operator"], value)


def evaluate(requirement: Requirement, run: "Run", metrics: "Sequence[Metric]") -> Verdict:
    """Compare a requirement with a run's newest values."""
    if requirement.key == "step" and requirement.behavior is None:
        return _verdict(requirement, float(run.step))
    found = [metric for metric in metrics if metric.key == requirement.key]
    if requirement.behavior is not None:
        found = [metric for metric in found if metric.behavior == requirement.behavior]
    if not found:
        return Verdict(requirement, met=False, reason=_unknown(requirement, metrics), judged=False)
    if len(found) > 1:
        names = ", ".join(metric.behavior for metric in found)
        reason = f"several behaviors have it ({names}); write BEHAVIOR:KEY"
        return Verdict(requirement, met=False, reason=reason, judged=False)
    return _verdict(requirement, found[0].value)


def early_verdicts(requirements: "Sequence[Requirement]", run: "Run", metrics: "Sequence[Metric]") -> list[Verdict]:
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


def _unknown(requirement: Requirement, metrics: "Sequence[Metric]") -> str:
    behaviors = sorted({metric.behavior for metric in metrics if metric.behavior})
    if requirement.behavior is not None and requirement.behavior not in behaviors:
        return f"no metrics of a behavior {requirement.behavior!r}; the run has {', '.join(behaviors) or 'none'}"
    return no_metric(requirement.key, metrics, "step")


def no_metric(key: str, metrics: "Sequence[Metric]", *further: str) -> str:
    """Return a sentence about a key that a run with these metrics does not have; `further` keys could be meant, too."""
    known = sorted({metric.key for metric in metrics})
    shorts = [short for short, full in SHORT_KEYS.items() if full in known]
    close = get_close_matches(key, [*shorts, *further, *known], n=1)
    advice = f"did you mean {close[0]!r}? " if close else ""
    return f"no such metric; {advice}the run has {', '.join(known) or 'none'}"


def _verdict(requirement: Requirement, actual: float | None) -> Verdict:
    if actual is None:
        return Verdict(requirement, met=False, reason="the newest value is not a number")
    return Verdict(requirement, requirement.holds(actual), f"it is {actual:g}")
