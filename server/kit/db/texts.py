"""Makes any text storable: PostgreSQL takes neither NUL characters nor lone surrogates, and columns have lengths.

For texts that come from outside or from a failing program, where losing a character is better than losing the record.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object, as a column of the database or an answer holds it."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str, length: int | None = None) -> str:
    """Return a text with what cannot be stored replaced by U+FFFD, cut to `length` characters."""
    return _UNSTORABLE.sub("\ufffd", text)[:length]


def storable_json(value: Any) -> Any:
    """Return a JSON value whose texts are all storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value
