"""Checks of a run's curricula as a whole: criteria against the watched behaviors, and against each other."""

from collections.abc import Iterator
from typing import Final

from ludus.config.behavior import ReinforcementConfig
from ludus.config.environment_parameters import CompletionCriteria, Lesson
from ludus.config.problems import join_path, show
from ludus.config.run import RunConfig
from server.kit.errors import Problem

_NEVER_FALLS: Final = "there is no lesson before the first one to fall back to; remove it"


def problems_of(config: RunConfig) -> list[Problem]:
    """Return the problems in `environment_parameters` that only the whole configuration shows, in its order."""
    return [
        Problem(join_path((*path, key)), code, message)
        for name, lessons in config.lessons().items()
        for index, lesson in enumerate(lessons)
        for path in [("environment_parameters", name, "curriculum", index, "completion_criteria")]
        for key, code, message in _about(config, lessons, index, lesson)
    ]


def _about(config: RunConfig, lessons: list[Lesson], index: int, lesson: Lesson) -> Iterator[tuple[str, str, str]]:
    """Yield key, code and message of what is wrong with one lesson's criteria."""
    criteria = lesson.completion_criteria
    if criteria is None:
        return
    is_last = index == len(lessons) - 1
    if is_last and criteria.fall_back_below is None:
        return  # without effect: `advice` says so
    yield from _about_behavior(config, criteria)
    if criteria.fall_back_below is None:
        return
    if index == 0:
        yield "fall_back_below", "contradiction", _NEVER_FALLS
    elif not is_last and criteria.fall_back_below > criteria.threshold:
        message = (
            f"is {criteria.fall_back_below:g}, above `threshold` ({criteria.threshold:g}), so that the same measure "
            "would end the lesson and fall back from it; choose a lower one"
        )
        yield "fall_back_below", "contradiction", message


def _about_behavior(config: RunConfig, criteria: CompletionCriteria) -> Iterator[tuple[str, str, str]]:
    behavior = config.behavior(criteria.behavior)
    if behavior is None:
        there = ", ".join(config.behaviors)
        message = (
            f"{show(criteria.behavior)} is not trained in this run, so the lesson would never end; there is {there}"
        )
        yield "behavior", "not_found", message
    elif criteria.measure == "Elo" and not (isinstance(behavior, ReinforcementConfig) and behavior.self_play):
        message = (
            f"Elo needs self-play, but behaviors.{criteria.behavior} has no self_play; give it one, or choose another "
            "measure"
        )
        yield "measure", "contradiction", message
