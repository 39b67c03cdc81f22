"""Where the environment parameters of a run are in their lessons, in numbers and in a sentence for people.

The trainer keeps the numbers (`worker.trainer.environment_parameters`); the API answers with them. Lessons are counted
from 1 here, as in "lesson 2 of 4". ML-Agents' `lesson_num`, in the metric and in training_status.json, counts from 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import TypeAdapter

from ludus.config.environment_parameters import MEASURES, CompletionCriteria, Lesson, LessonValue, Sampler, describe
from ludus.json_values import JsonObject
from ludus.schemas import EnvironmentParameter

_VALUE: Final[TypeAdapter[float | Sampler]] = TypeAdapter(LessonValue)


def value_to_plain(value: float | Sampler) -> float | JsonObject:
    """Return a parameter's value as configurations write it."""
    plain: float | JsonObject = _VALUE.dump_python(value, mode="json")
    return plain


def value_from_plain(plain: object) -> float | Sampler:
    """Read a parameter's value. Raises pydantic's `ValidationError`."""
    return _VALUE.validate_python(plain)


def log_line(parameter: str, lesson: str, value: float | Sampler) -> str:
    """Return what ML-Agents logs when a parameter has a new lesson."""
    return f"Parameter '{parameter}' is in lesson '{lesson}' and has value '{describe(value)}'."


def status_of(
    name: str,
    lessons: Sequence[Lesson],
    index: int,
    value: float | Sampler,
    *,
    measured: float | None = None,
    episodes: int = 0,
    trained: bool = False,
) -> EnvironmentParameter:
    """Describe a parameter in lesson `index` (from 0). `trained`: whether the watched behavior has a trainer."""
    lesson = lessons[index]
    status = EnvironmentParameter(
        name=name,
        lesson=index + 1,
        lessons=len(lessons),
        lesson_name=lesson.name,
        value=value_to_plain(value),
        waits_for="",
    )
    criteria = lesson.completion_criteria
    is_last = index == len(lessons) - 1
    if criteria is None or (is_last and criteria.fall_back_below is None):
        sentence = f"{_lesson(status)}: the last one" if len(lessons) > 1 else f"no curriculum: {describe(value)}"
        return replace(status, waits_for=sentence)
    status = replace(
        status,
        measure=criteria.measure,
        measured=measured,
        threshold=None if is_last else criteria.threshold,
        episodes=episodes,
        min_lesson_length=criteria.min_lesson_length,
    )
    if not trained:
        sentence = f"{_lesson(status)}: waits for the behavior {criteria.behavior!r}, which has no trainer yet"
        return replace(status, waits_for=sentence)
    return replace(status, waits_for=f"{_lesson(status)}: {_needs(status, criteria)}")


def after_end(status: EnvironmentParameter) -> EnvironmentParameter:
    """Describe a parameter of a run that has ended: it waits for nothing any more."""
    if status.lessons == 1:
        return status
    sentence = f"ended in {_lesson(status)}"
    if status.measure is not None:
        reached = "was never measured" if status.measured is None else f"was {_number(status.measured)}"
        sentence += f": {status.measure} {reached}"
        sentence += "" if status.threshold is None else f", needed > {_number(status.threshold)}"
    return replace(status, waits_for=sentence)


def _lesson(status: EnvironmentParameter) -> str:
    return f"lesson {status.lesson} of {status.lessons} {status.lesson_name!r}"


def _needs(status: EnvironmentParameter, criteria: CompletionCriteria) -> str:
    what = criteria.measure
    if criteria.signal_smoothing and what != "progress":
        what = f"smoothed {what}"
    words = [f"{what} {_number(status.measured)}" if status.measured is not None else f"no {criteria.measure} yet"]
    if status.threshold is not None:
        words.append(f"needs > {_number(status.threshold)}")
    if criteria.fall_back_below is not None:
        words.append(f"falls back below {_number(criteria.fall_back_below)}")
    sentence = ", ".join(words)
    if criteria.min_lesson_length:
        unit = "episodes" if criteria.measure in MEASURES else "values"
        sentence += f"; {min(status.episodes, criteria.min_lesson_length)} of {criteria.min_lesson_length} {unit}"
    return sentence


def _number(value: float) -> str:
    """Write a number with two decimals, or three digits where these would show nothing."""
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.3g}"
