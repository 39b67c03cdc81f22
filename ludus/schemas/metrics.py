"""Metrics of runs. A value that is not a finite number is null."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

STEPS_PER_SECOND: Final = "Performance/Agent Steps per Second"
"""The metric that every summary has, for the speed of runs."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The newest value of a metric."""

    behavior: str
    """Empty for metrics of the run as a whole."""
    key: str
    step: int
    value: float | None = None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Series:
    """A metric over time in columns, ascending by step; after down-sampling an entry stands for several points."""

    run_id: str = ""
    """Empty where a server of an older release answers."""
    behavior: str
    key: str
    total: int
    """Number of points behind each entry."""
    steps: tuple[int, ...]
    """Of each entry's last point; with `common_steps` the last step that the entry covers."""
    times: tuple[datetime | None, ...]
    """Of each entry's last point; null where it has none."""
    values: tuple[float | None, ...]
    """Means of the entry's points; null where none is a number."""
    minima: tuple[float | None, ...]
    maxima: tuple[float | None, ...]
    counts: tuple[int, ...]
    """Number of points of each entry."""
