"""Metrics and logs of runs."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Metric:
    """The newest value of a metric. `behavior` is empty for metrics of the run as a whole."""

    behavior: str
    key: str
    step: int
    value: float | None
    at: datetime


@dataclass(frozen=True)
class Series:
    """A metric over time in columns, ascending by step; where it was thinned, each entry stands for several points."""

    behavior: str
    key: str
    total: int
    """Points that the entries stand for."""
    steps: tuple[int, ...]
    """Of each entry's last point, as are the times."""
    times: tuple[datetime, ...]
    values: tuple[float | None, ...]
    """Means of the entry's points; None where none is a number."""
    minima: tuple[float | None, ...]
    maxima: tuple[float | None, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Log:
    """A log file of an attempt; `size` in bytes."""

    epoch: int
    name: str
    size: int
    updated_at: datetime


@dataclass(frozen=True)
class LogText:
    """A part of a log. Offsets and sizes are in bytes of the file."""

    text: str
    offset: int
    next_offset: int
    size: int
