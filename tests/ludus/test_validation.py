"""No sentence of pydantic reaches people, whatever its error is."""

import re

from pydantic_core import PydanticKnownError
from pydantic_core._pydantic_core import list_all_errors

from ludus.validation import ANY_OTHER, WORDS, in_words

THEIRS = re.compile(
    r"Input should|String should|should match|should be a valid|Value error|Field required|Extra inputs"
)
"""The beginnings of pydantic's sentences."""


def test_an_error_of_pydantic_that_no_field_makes_today_is_not_shown_in_its_words_either() -> None:
    for kind in list_all_errors():
        context = kind.get("example_context") or {}
        error = PydanticKnownError(kind["type"], context)  # type: ignore[arg-type]  # one of them all
        message = in_words({"type": kind["type"], "msg": error.message(), "ctx": context, "input": "x"})
        if kind["type"] not in {"value_error", "assertion_error"}:  # what a validator of ours says
            assert not THEIRS.search(message), message
            assert message == ANY_OTHER or kind["type"] in WORDS
