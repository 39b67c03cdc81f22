"""Environment parameters of runs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class EnvironmentParameter:
    """Where one environment parameter of a run is in its lessons."""

    name: str
    lesson: int
    """Number of the present lesson, counted from 1."""
    lessons: int
    lesson_name: str
    value: float | dict[str, Any]
    """A number, or a sampler as in configurations."""
    waits_for: str
    """A sentence: the lesson, and what has to happen before it ends."""
    measure: str | None = None
    measured: float | None = None
    """The newest measure, smoothed if that is asked for."""
    threshold: float | None = None
    episodes: int = 0
    """Finished episodes (of a metric: values) of this lesson that the measure is made of."""
    min_lesson_length: int = 0


@dataclass(frozen=True)
class ParameterEdit:
    """A change that was asked for and not carried out yet."""

    seq: int
    parameter: str
    change: dict[str, Any]
    """`lesson`, `value`, or both."""
    created_at: datetime


@dataclass(frozen=True)
class EnvironmentParameters:
    """The environment parameters of a run."""

    parameters: tuple[EnvironmentParameter, ...]
    pending: tuple[ParameterEdit, ...] = ()
