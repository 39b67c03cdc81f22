"""The common parent of a configuration's sections, and the types of their values.

Numbers are read as ML-Agents reads them, and no further: YAML 1.1 takes `3e-4` and `1e5` for text, so text that denotes
a number is a number; but true and false are not, and a whole number with a fraction is refused (ML-Agents cuts it).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ludus.config.problems import show
from ludus.json_values import JsonObject
from ludus.validation import NAME, Form

Value = TypeVar("Value")
OWN: Final[JsonObject] = {"origin": "Ludus"}
Own: TypeAlias = Annotated[Value, Field(json_schema_extra=OWN)]
"""Marks a key that ML-Agents doesn't have: `json_schema_extra` of its field is `OWN`."""

Schedule: TypeAlias = Literal["linear", "constant"]
"""`linear` falls from the given value at step 0 towards a floor at `max_steps`; `constant` stays."""


class Section(BaseModel):
    """Parent of all sections: frozen, without unknown keys, defaults checked like given values."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Extensible(Section):
    """Parent of the sections to which plug-ins add keys. Null means that a plug-in is not used, also where it is
    unknown: in a run that was stored, or on a worker, that has other plug-ins.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_unused(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key in cls.model_fields}

    @classmethod
    def extend(cls, name: str, section: type[Section], text: str) -> None:
        """Add the section of a plug-in, which is null unless it is used; `model_rebuild` completes it."""
        annotation: Any = section | None
        cls.__pydantic_fields__[name] = FieldInfo(
            annotation=annotation, default=None, description=text, json_schema_extra=OWN
        )


def sections_in(annotation: object) -> Iterator[type[Section]]:
    """Iterate over the sections that a value of this type is, may be, or is a collection of."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if issubclass(annotation, Section):
            yield annotation
    else:
        for part in get_args(annotation):
            yield from sections_in(part)


def config_error(code: str, message: str, *, at: str | None = None) -> PydanticCustomError:
    """Make the error of a validator; `at` names another key of the section, or below it, to show the problem at."""
    return PydanticCustomError(code, "{message}", {"message": message, "at": at})


def _number(value: object, kind: str) -> int | float:
    """Return the number that a value denotes; `kind` names what the key wants."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    raise config_error("wrong_type", f"must be {kind}, but is {show(value)}")


def _real(value: object) -> float:
    number = _number(value, "a number")
    try:
        real = float(number)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise config_error("not_finite", f"must be a finite number, but is {show(value)}")
    return real


def _whole(value: object) -> int:
    number = _number(value, "a whole number")
    if isinstance(number, float) and not number.is_integer():
        raise config_error("wrong_type", f"must be a whole number, but is {show(value)}")
    return _storable(int(number))


def _truncated(value: object) -> int:
    number = _number(value, "a number of steps")
    if isinstance(number, float) and not math.isfinite(number):
        raise config_error("not_finite", f"must be a finite number of steps, but is {show(value)}")
    return _storable(int(number))


def _storable(number: int) -> int:
    """Return a number that counters, tensors and columns of the database hold."""
    if not -(2**63) <= number < 2**63:
        raise config_error(
            "out_of_range", f"must be a whole number from {-(2**63)} to {2**63 - 1}, but is {show(number)}"
        )
    return number


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _flag(value: object) -> object:
    if isinstance(value, bool):
        return value
    raise config_error("wrong_type", f"must be true or false, but is {show(value)}")


Real: TypeAlias = Annotated[float, BeforeValidator(_real)]
"""A finite number."""
PositiveReal: TypeAlias = Annotated[float, Field(gt=0), BeforeValidator(_real)]
"""A finite number above 0."""
SingleReal: TypeAlias = Annotated[float, Field(ge=-3.4e38, le=3.4e38), BeforeValidator(_real)]
"""A finite number that single precision holds."""
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]
"""A whole number; 64.0 and "1e5" are ones."""
Seed: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_whole)]
"""A seed: 31 bits, which every generator of random numbers takes."""
Steps: TypeAlias = Annotated[int, BeforeValidator(_truncated)]
"""A number of steps, read as `int(float(value))` like ML-Agents' `max_steps`: a fraction is cut."""
Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
"""Text; what YAML takes for a number is text here, as in ML-Agents."""
Flag: TypeAlias = Annotated[StrictBool, BeforeValidator(_flag)]
"""true or false, never text or a number."""


def _behavior_name(name: str) -> str:
    """Check a behavior's name: it names files and stands in addresses."""
    if not name or len(name) > 100 or len(name.encode()) > 180 or name != name.strip() or name.startswith("."):
        problem = "must have 1 to 100 characters (180 bytes), no space at either end and no dot at the start"
    elif "?" in name:
        problem = "is the name without `?team=`: all teams of a behavior share one section"
    elif any(character in '/\\:*"<>|' or not character.isprintable() for character in name):
        problem = 'must not hold / \\ : * " < > | or control characters, since files are named after it'
    else:
        return name
    raise config_error("invalid_value", f"the behavior's name {problem}")


BehaviorName: TypeAlias = Annotated[str, AfterValidator(_behavior_name)]
"""A behavior's name in the game, without `?team=`."""

CHECKPOINT_ID: Final = r"^ckpt_[0-9a-z]{26}$"
CheckpointId: TypeAlias = Annotated[str, Form("the id of a checkpoint (ckpt_...)", CHECKPOINT_ID)]
DemonstrationId: TypeAlias = Annotated[
    str, Form("the id of an uploaded demonstration (dem_...)", r"^dem_[0-9a-z]{26}$")
]
Label: TypeAlias = Annotated[
    str,
    Form(
        "1 to 40 letters, digits, dots, underscores and hyphens, no sign in front", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
    ),
]
"""A resource of a worker that a run may demand."""
LadderName: TypeAlias = Annotated[Text, replace(NAME, words=f"the name of a ladder: {NAME.words}")]
