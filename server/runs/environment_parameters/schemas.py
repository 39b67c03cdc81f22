"""What the API says of a run's environment parameters, and what it is told."""

from typing import Any, Self

from pydantic import Field, model_validator

from server.config.parameters import LessonKey, LessonValue, ParameterName
from server.kit.http.fields import Read, Time, Write


class EnvironmentParameterRead(Read):
    """One environment parameter."""

    name: str
    lesson: int = Field(
        description="Number of the present lesson, counted from 1; the metric `Environment/Lesson Number/NAME` counts "
        "from 0, as ML-Agents does."
    )
    lessons: int = Field(description="How many there are; 1 without a curriculum.")
    lesson_name: str
    value: float | dict[str, Any] = Field(description="What simulators are told: a number, or a sampler.")
    measure: str | None = Field(description="What the lesson waits for; null where it waits for nothing.")
    measured: float | None = Field(
        description="The newest measure, smoothed if that is asked for; null before the first."
    )
    threshold: float | None = Field(description="The lesson is over above it.")
    episodes: int = Field(
        description="Finished episodes (of a metric: values) of this lesson in the buffer. It holds as many as the "
        "longest `min_lesson_length` of the behavior, at least 1."
    )
    min_lesson_length: int
    waits_for: str = Field(
        description="The same as a sentence; once the run has ended, where the parameter was at its end.",
        examples=["lesson 2 of 4 'HighWall': smoothed reward 0.61, needs > 0.80; 74 of 100 episodes"],
    )


class ParameterEditRead(Read):
    """A change that was asked for and that the trainer has not carried out yet."""

    seq: int
    parameter: str
    change: dict[str, Any] = Field(description="`lesson`, counted from 1, or `value`, or both.")
    created_at: Time


class EnvironmentParametersRead(Read):
    """The environment parameters of a run."""

    parameters: list[EnvironmentParameterRead]
    pending: list[ParameterEditRead] = Field(
        description="Asked for and not done yet; a live run does it within seconds, others when they go on. Once the "
        "run has ended: never done."
    )


class EnvironmentParameterChange(Write):
    """Another lesson for a parameter, or another value for its present lesson, or both."""

    lesson: LessonKey | None = Field(default=None, description="The lesson to begin: its name, or its number from 1.")
    value: LessonValue | None = Field(
        default=None,
        description="A number or a sampler, in place of what the lesson has in the configuration; it stays the "
        "lesson's. A sampler without a seed gets one of the run's.",
    )

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if self.lesson is None and self.value is None:
            raise ValueError("give a lesson, a value, or both")
        return self


class EnvironmentParametersUpdate(Write):
    """Changes of a run that has not ended."""

    parameters: dict[ParameterName, EnvironmentParameterChange] = Field(
        min_length=1,
        max_length=1000,
        description="By the parameter's name.",
        examples=[{"wall_height": {"lesson": "HighWall"}, "gravity": {"value": 9.81}}],
    )
