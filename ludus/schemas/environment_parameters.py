"""Environment parameters of runs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EnvironmentParameter:
    """One environment parameter of a run, and its lesson."""

    name: str
    lesson: int
    """Number of the present lesson, counted from 1; the metric `Environment/Lesson Number/NAME` counts from 0, as
    ML-Agents does."""
    lessons: int
    """Number of lessons; 1 without a curriculum."""
    lesson_name: str
    value: float | dict[str, Any]
    """The value that simulators get: a number, or a sampler."""
    measure: str | None = None
    """The measure that ends the lesson; null where nothing does."""
    measured: float | None = None
    """The newest measure, smoothed if the configuration asks for it; null before the first."""
    threshold: float | None = None
    """The lesson ends above it."""
    episodes: int = 0
    """Finished episodes (of a metric: values) of this lesson in the buffer. It holds as many as the longest
    `min_lesson_length` of the behavior, at least 1."""
    min_lesson_length: int = 0
    waits_for: str
    """The same as a sentence; once the run has ended, the last state. For instance: `lesson 2 of 4 'HighWall': smoothed
    reward 0.61, needs > 0.80; 74 of 100 episodes`."""


@dataclass(frozen=True, kw_only=True)
class ParameterEdit:
    """A requested change that the trainer has not carried out yet."""

    seq: int
    parameter: str
    change: dict[str, Any]
    """`lesson`, counted from 1, or `value`, or both."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class EnvironmentParameters:
    """The environment parameters of a run."""

    parameters: tuple[EnvironmentParameter, ...]
    pending: tuple[ParameterEdit, ...] = ()
    """Requested and not done yet; a live run does it within seconds, others when they continue. Once the run has ended:
    never done."""
