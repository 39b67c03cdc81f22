"""Request bodies about environment parameters."""

from typing import Self

from pydantic import Field, model_validator

from ludus.config.environment_parameters import LessonKey, LessonValue, ParameterName
from server.kit.http.fields import Write


class EnvironmentParameterChange(Write):
    """Another lesson for a parameter, or another value for its present lesson, or both."""

    lesson: LessonKey | None = None
    """The lesson to begin: its name, or its number from 1."""
    value: LessonValue | None = None
    """A number or a sampler, in place of what the lesson has in the configuration; it stays the lesson's. A sampler
    without a seed gets one of the run's.
    """

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if self.lesson is None and self.value is None:
            raise ValueError("give a lesson, a value, or both")
        return self


class EnvironmentParametersUpdate(Write):
    """Changes of a run that has not ended."""

    parameters: dict[ParameterName, EnvironmentParameterChange] = Field(
        min_length=1, max_length=1000, examples=[{"wall_height": {"lesson": "HighWall"}, "gravity": {"value": 9.81}}]
    )
    """By the parameter's name."""
