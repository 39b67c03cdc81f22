"""`environment_parameters`: numbers for the game, fixed, drawn by a sampler, or changed lesson by lesson.

A plain value is a curriculum of one lesson. Keys, defaults and seeds are those of ML-Agents 1.1.0 (`settings.py` and
`environment_parameter_manager.py`). Refused beyond it: an interval of other than two values (it cuts a third silently),
an empty curriculum (it fails there later), and what single precision cannot hold.
"""

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
)

from ludus.config.problems import show
from ludus.config.values import Flag, Own, Real, Section, SingleReal, Text, Whole, config_error
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from ludus.protocol.specs import MAX_NAME_BYTES, is_name


def _parameter_name(name: str) -> str:
    """Check a parameter's name. Unity's side channels carry ASCII, and the name stands in that of a metric."""
    if name.isascii() and name.isprintable() and 1 <= len(name) <= 170:
        return name
    raise config_error(
        "invalid_value",
        f"the parameter's name {show(name)} must have 1 to 170 printable characters of ASCII, since a Unity game reads "
        "no others; rename it, here and in the game",
    )


ParameterName: TypeAlias = Annotated[str, AfterValidator(_parameter_name)]
"""The name by which a game looks a parameter up."""


class SamplerParameters(Section):
    """Parent of all samplers' numbers."""

    seed: Whole = Field(default=-1, ge=-(2**31), le=2**31 - 1)
    """Seed of the draws. -1 = the run's seed + k, where k counts all values of all lessons of all parameters that have
    no seed, constants too, in the document's order from 0.
    """


class ConstantParameters(SamplerParameters):
    """A value that stays."""

    value: SingleReal = 0.0
    """The value."""


class UniformParameters(SamplerParameters):
    """Every value between two bounds is as likely as any other."""

    min_value: SingleReal = 0.0
    """Lower bound."""
    max_value: SingleReal = 1.0
    """Upper bound; at least `min_value`."""

    @field_validator("max_value")
    @classmethod
    def _ordered(cls, max_value: float, info: ValidationInfo) -> float:
        min_value = info.data.get("min_value", max_value)
        if min_value > max_value:
            raise config_error(
                "contradiction",
                f"min_value ({min_value:g}) is greater than max_value ({max_value:g}); exchange them",
                at="min_value",
            )
        return max_value


class GaussianParameters(SamplerParameters):
    """Normally distributed values."""

    mean: SingleReal = 1.0
    """Mean."""
    st_dev: SingleReal = 1.0
    """Standard deviation; its sign has no effect."""


class MultiRangeUniformParameters(SamplerParameters):
    """Every value in any of several intervals is as likely as any other."""

    intervals: list[list[SingleReal]] = Field(default=[[0.0, 1.0]], min_length=1, max_length=1000)
    """Pairs of a lower and an upper bound."""

    @field_validator("intervals")
    @classmethod
    def _pairs(cls, intervals: list[list[float]]) -> list[list[float]]:
        for number, interval in enumerate(intervals, 1):
            if len(interval) != 2:
                raise config_error("invalid_value", f"interval {number}, {interval}, must contain exactly two values")
            if interval[0] > interval[1]:
                raise config_error(
                    "contradiction", f"interval {number}, {interval}, has a minimum above its maximum; exchange them"
                )
        return intervals


class SamplerSection(Section):
    """Parent of all samplers."""

    sampler_type: str
    """The distribution."""
    sampler_parameters: SamplerParameters
    """Its numbers; `{}` = all defaults."""


class ConstantSampler(SamplerSection):
    """A value that stays, in the form of a sampler; a plain number means the same."""

    sampler_type: Literal["constant"]
    sampler_parameters: ConstantParameters


class UniformSampler(SamplerSection):
    """Values from between two bounds."""

    sampler_type: Literal["uniform"]
    sampler_parameters: UniformParameters


class GaussianSampler(SamplerSection):
    """Values from a normal distribution."""

    sampler_type: Literal["gaussian"]
    sampler_parameters: GaussianParameters


class MultiRangeUniformSampler(SamplerSection):
    """Values from several intervals."""

    sampler_type: Literal["multirangeuniform"]
    sampler_parameters: MultiRangeUniformParameters


Sampler: TypeAlias = ConstantSampler | UniformSampler | GaussianSampler | MultiRangeUniformSampler
"""The union of all samplers."""

SAMPLERS: Final[Mapping[str, type[SamplerSection]]] = {
    get_args(sampler.model_fields["sampler_type"].annotation)[0]: sampler for sampler in get_args(Sampler)
}
"""The samplers by `sampler_type`."""

FORMS: Final = frozenset({"number", "lessons", *SAMPLERS})
"""The answer of `form_of`."""

_SAMPLER_FORM: Final = (
    "a number or a sampler, `{sampler_type: T, sampler_parameters: {...}}`, where T is constant, uniform, gaussian or "
    "multirangeuniform"
)


def form_of(value: object) -> str | None:
    """Name the form of a parameter's value, as it is written or as a section; None if it has none."""
    match value:
        case bool():
            return None
        case int() | float() | str():
            return "number"
        case {"curriculum": _} | Curriculum():
            return "lessons"
        case {"sampler_type": str(kind)} if kind in SAMPLERS:
            return kind
        case SamplerSection():
            return value.sampler_type
        case _:
            return None


_Value: TypeAlias = (
    Annotated[SingleReal, Tag("number")]
    | Annotated[ConstantSampler, Tag("constant")]
    | Annotated[UniformSampler, Tag("uniform")]
    | Annotated[GaussianSampler, Tag("gaussian")]
    | Annotated[MultiRangeUniformSampler, Tag("multirangeuniform")]
)
LessonValue: TypeAlias = Annotated[
    _Value, Discriminator(form_of, custom_error_type="wrong_type", custom_error_message=f"must be {_SAMPLER_FORM}")
]
"""A number, or a sampler."""


def sampler_of(value: float | Sampler) -> ParameterValue:
    """Return the form of a value that simulators receive."""
    match value:
        case ConstantSampler(sampler_parameters=given):
            return Constant(given.value)
        case UniformSampler(sampler_parameters=given):
            return Uniform(given.min_value, given.max_value, given.seed)
        case GaussianSampler(sampler_parameters=given):
            return Gaussian(given.mean, given.st_dev, given.seed)
        case MultiRangeUniformSampler(sampler_parameters=given):
            return MultiRangeUniform(tuple((low, high) for low, high in given.intervals), given.seed)
        case number:
            return Constant(number)


def describe(value: float | Sampler) -> str:
    """Write a value as ML-Agents' log does."""
    match value:
        case ConstantSampler(sampler_parameters=given):
            return f"Float: value={given.value}"
        case UniformSampler(sampler_parameters=given):
            return f"Uniform sampler: min={given.min_value}, max={given.max_value}"
        case GaussianSampler(sampler_parameters=given):
            return f"Gaussian sampler: mean={given.mean}, stddev={given.st_dev}"
        case MultiRangeUniformSampler(sampler_parameters=given):
            return f"MultiRangeUniform sampler: intervals={given.intervals}"
        case number:
            return f"Float: value={number}"


MEASURES: Final = ("reward", "progress", "Elo")
"""Measures that have a name of their own; every other one is a metric's key."""


def _measure(measure: str) -> str:
    """Check a measure: a word of `MEASURES`, or a metric's key that is not one of them misspelt."""
    if measure in MEASURES:
        return measure
    legal = "must be reward, progress, Elo, or the key of a metric that simulators report, as Environment/Success"
    if not is_name(measure):
        raise config_error("invalid_value", f"{legal} (1 to {MAX_NAME_BYTES} printable bytes), but is {show(measure)}")
    near = difflib.get_close_matches(measure.lower(), [word.lower() for word in MEASURES], n=1, cutoff=0.7)
    if near and "/" not in measure:
        meant = next(word for word in MEASURES if word.lower() == near[0])
        raise config_error("invalid_value", f"{legal}, but is {show(measure)}; did you mean `{meant}`?")
    return measure


class CompletionCriteria(Section):
    """When a lesson is over."""

    behavior: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """The behavior whose training is watched."""
    measure: Annotated[str, AfterValidator(_measure)] = "reward"
    """The measure for `threshold`: `reward`, the mean return of the newest episodes; `progress`, the steps so far
    divided by `max_steps`; beyond ML-Agents `Elo`, the rating in self-play, and any metric that simulators report, by
    its key (`Environment/Success`): the mean of the newest values.
    """
    min_lesson_length: Whole = Field(default=0, ge=0, le=1_000_000)
    """Minimum number of episodes (of a metric: values) in the mean."""
    signal_smoothing: Flag = True
    """Smooth the measure, except `progress`: a quarter of the last value, three quarters of the new one."""
    threshold: Real = 0.0
    """The lesson is over above this value; between 0 and 1 for `progress`."""
    require_reset: Flag = False
    """Reset all simulators when the next lesson begins."""
    count_all_episodes: Own[Flag] = False
    """Count episodes that began under another lesson, too, as ML-Agents does. By default only episodes that began under
    this one count.
    """
    fall_back_below: Own[Real | None] = None
    """The lesson before begins again when the measure of a full buffer is below this value; null = never. The buffer
    holds as many episodes as the longest `min_lesson_length` of this behavior. The last lesson may have it, too.
    """

    @field_validator("threshold")
    @classmethod
    def _is_a_part(cls, threshold: float, info: ValidationInfo) -> float:
        if info.data.get("measure") == "progress" and not 0 <= threshold <= 1:
            raise config_error(
                "out_of_range", f"must be between 0 and 1 when the measure is progress, but is {threshold:g}"
            )
        return threshold

    @field_validator("fall_back_below")
    @classmethod
    def _can_fall(cls, fall_back_below: float | None, info: ValidationInfo) -> float | None:
        if fall_back_below is not None and info.data.get("measure") == "progress":
            raise config_error("contradiction", "progress never falls, so that no lesson falls back by it; remove it")
        return fall_back_below


class Lesson(Section):
    """One step of a curriculum."""

    name: Annotated[Text, StringConstraints(min_length=1, max_length=200)]
    """Its name, for people."""
    value: LessonValue
    """The parameter's value in this lesson: a number, or a sampler."""
    completion_criteria: CompletionCriteria | None = None
    """When the next lesson begins; every lesson but the last needs it."""

    @property
    def sampler(self) -> ParameterValue:
        """The value that simulators get in this lesson."""
        return sampler_of(self.value)


class LessonUnknown(LookupError):
    """A curriculum has no such lesson; the message says which there are."""


def find_lesson(lessons: Sequence[Lesson], lesson: int | str) -> int:
    """Return the index, from 0, of a lesson given by its name, or by its number as people count, from 1.

    Digits as text are a number where no lesson has that name. Raises LessonUnknown.
    """
    names = [candidate.name for candidate in lessons]
    if isinstance(lesson, str) and lesson in names:
        return names.index(lesson)
    number = int(lesson) if isinstance(lesson, int) or (lesson.isascii() and lesson.isdecimal()) else 0
    if 1 <= number <= len(lessons):
        return number - 1
    listed = ", ".join(f"{index} {show(name)}" for index, name in enumerate(names[:20], 1))
    listed += ", ..." if len(names) > 20 else ""
    raise LessonUnknown(f"there is no lesson {show(lesson)}; lessons are counted from 1, there is {listed}")


def _lesson_key(value: object) -> object:
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise config_error("wrong_type", f"must be a lesson's number, counted from 1, or its name, but is {show(value)}")


LessonKey: TypeAlias = Annotated[int | str, BeforeValidator(_lesson_key)]
"""A lesson's number, counted from 1, or its name."""


class Curriculum(Section):
    """A parameter that changes as training gets on."""

    curriculum: list[Lesson] = Field(min_length=1, max_length=1000)
    """The lessons, in their order."""
    starting_lesson: Own[LessonKey | None] = None
    """The lesson to begin with, by its name or its number, counted from 1; null = the first."""

    @field_validator("starting_lesson")
    @classmethod
    def _is_there(cls, lesson: int | str | None, info: ValidationInfo) -> int | str | None:
        if lesson is not None and "curriculum" in info.data:
            try:
                find_lesson(info.data["curriculum"], lesson)
            except LessonUnknown as error:
                raise config_error("invalid_value", str(error)) from None
        return lesson

    @property
    def first(self) -> int:
        """Index of the lesson to begin with, from 0."""
        return 0 if self.starting_lesson is None else find_lesson(self.curriculum, self.starting_lesson)

    @field_validator("curriculum")
    @classmethod
    def _chained(cls, lessons: list[Lesson]) -> list[Lesson]:
        for number, lesson in enumerate(lessons[:-1], 1):
            if lesson.completion_criteria is None:
                raise config_error(
                    "invalid_value",
                    f"lesson {number}, {lesson.name!r}, has no completion_criteria, so that the next one would never "
                    "begin; only the last lesson has none",
                )
        return lessons


EnvironmentParameter: TypeAlias = Annotated[
    _Value | Annotated[Curriculum, Tag("lessons")],
    Discriminator(
        form_of,
        custom_error_type="wrong_type",
        custom_error_message=f"must be {_SAMPLER_FORM}, or `{{curriculum: [...]}}`",
    ),
]
"""A number, a sampler, or a curriculum."""


def seeded(
    parameters: Mapping[str, float | Sampler | Curriculum], seed: int
) -> dict[str, float | Sampler | Curriculum]:
    """Return the parameters with a seed for each sampler that has none: `seed` + k, see `SamplerParameters.seed`."""
    free = (number % 2**31 for number in itertools.count(seed))  # seeds have 31 bits
    filled: dict[str, float | Sampler | Curriculum] = {}
    for name, parameter in parameters.items():
        if isinstance(parameter, Curriculum):
            copies = [
                lesson.model_copy(update={"value": _seeded(lesson.value, free)}) for lesson in parameter.curriculum
            ]
            filled[name] = parameter.model_copy(update={"curriculum": copies})
        else:
            filled[name] = _seeded(parameter, free)
    return filled


def _seeded(value: float | Sampler, free: Iterator[int]) -> float | Sampler:
    if isinstance(value, float):
        next(free)
        return value
    if value.sampler_parameters.seed != -1:
        return value
    numbers = value.sampler_parameters.model_copy(update={"seed": next(free)})
    return value.model_copy(update={"sampler_parameters": numbers})


def with_seed(value: float | Sampler, seed: int) -> float | Sampler:
    """Return one value with this seed, if it is a sampler without one."""
    return _seeded(value, iter([seed]))
