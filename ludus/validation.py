"""Mistakes in words: pydantic's errors are translated, none of its own sentences reaches people.

A text with a pattern is declared with `Form`, a union with `OneOf`: both bring their own words, since a pattern, or one
sentence for each member of a union, helps nobody.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ludus.names import NAME_RULE, is_name

_OURS: Final = "wrong_form"
_NUMBER: Final = "must be a number"
_WHOLE: Final = "must be a whole number"
_TRUTH: Final = "must be true or false"
_TIME: Final = "must be a time, as 2026-01-31T12:00:00Z"
_OBJECT: Final = "must be an object with keys"
_LONG: Final = f"must be a number that 64 bits hold: whole ones lie between {-(2**63)} and {2**63 - 1}"
WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_type": "must be text",
    "string_unicode": "must be text in UTF-8",
    "string_too_short": "must not have fewer characters than {min_length}",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": _LONG,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "list_type": "must be a list",
    "too_short": "must not have fewer entries than {min_length}",
    "too_long": "must have at most {max_length} entries",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "invalid_key": "has a key that is no text",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "datetime_object_invalid": _TIME,
}
"""Sentences without their subject, by pydantic's types of errors."""
_THEIRS: Final = frozenset(get_args(core_schema.ErrorType))
"""All types of errors that pydantic has; others, and `value_error`, bring our words."""
ANY_OTHER: Final = "does not have the form that its description demands"


def in_words(error: Mapping[str, Any]) -> str:
    """Return the sentence, without its subject, of one of pydantic's errors. The value is not in it."""
    kind, value = error["type"], error.get("input")
    if kind not in _THEIRS or kind == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if isinstance(value, str) and kind in {"too_long", "too_short"}:
        kind = f"string_{kind}"
    digits = len(value) if isinstance(value, str) else value.bit_length() / 3.33 if isinstance(value, int) else 0
    if WORDS.get(kind) in {_WHOLE, _NUMBER} and digits > 18:  # of such a number pydantic says only that it is none
        return _LONG
    return WORDS.get(kind, ANY_OTHER).format_map(error.get("ctx", {}))


def place(location: Sequence[str | int]) -> list[str]:
    """Return the keys that lead to a mistake, without pydantic's mark of a key that is the mistake itself."""
    return [str(part) for part in location if part != "[key]"]


@dataclass(frozen=True)
class Form:
    """The form of a text, for `Annotated`: what it must be, in words, and whether a text is that."""

    words: str
    """Ends the sentence "must be"."""
    pattern: str
    """Also for the description of the API."""
    fits: Callable[[str], bool] | None = None
    """The rule where a pattern cannot say it; texts that do not match the pattern never keep it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the form after everything else."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe the text by the pattern."""
        return {**handler(schema), "pattern": self.pattern}

    def _checked(self, text: str) -> str:
        if not (re.fullmatch(self.pattern, text) if self.fits is None else self.fits(text)):
            raise PydanticCustomError(_OURS, "must be {words}", {"words": self.words})
        return text


@dataclass(frozen=True)
class OneOf:
    """Says in words what a union takes, for `Annotated`: one mistake instead of one for each member."""

    words: str
    """Ends the sentence "must be"."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Replace the mistakes of all members."""
        return core_schema.no_info_wrap_validator_function(self._checked, handler(source))

    def _checked(self, value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise PydanticCustomError(_OURS, "must be {words}", {"words": self.words}) from None


NAME: Final = Form(NAME_RULE, r"^[^\s/:?#%&*]+$", is_name)
"""Names, and ids, which are names, too."""
NO_NUL: Final = Form("text without the character NUL", r"^[^\x00]*$", lambda text: "\0" not in text)
"""Any text that PostgreSQL stores."""
