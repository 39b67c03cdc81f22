"""The codes of problems in a configuration, and the paths that point at them.

A path joins keys by dots: `behaviors.CartPole.hyperparameters.batch_size`. A key that holds a dot, a quote or a
bracket, or nothing at all, stands in JSON quotes: `behaviors."my.bot".max_steps`. A list's element is its number in
brackets.
"""

import json
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

CODES: Final = {
    "alias_refused": "YAML aliases that expand without measure, or point nowhere or at themselves.",
    "contradiction": "Two values that are legal alone don't go together.",
    "deprecated": "A warning: a key that still works, with its successor.",
    "doubtful": "A warning: legal, but it may not do what is hoped for.",
    "duplicate_key": "The same key twice in one mapping.",
    "empty_document": "There is nothing in the document.",
    "immutable": "A key that cannot change during the run; the message says why.",
    "invalid_encoding": "Text that isn't valid UTF-8, or holds a NUL character or half a surrogate pair.",
    "invalid_syntax": "Neither YAML nor JSON.",
    "invalid_value": "Not one of the legal values.",
    "key_not_text": "A key that YAML reads as a number, a truth value or nothing.",
    "measured_better": "A warning: another value measured better on tasks of this kind (docs/recommendations.md).",
    "missing": "A required key isn't there.",
    "no_effect": "A warning: legal, but without effect where it stands.",
    "not_a_mapping": "The document isn't a mapping of keys to values.",
    "not_found": "An id of something that the server does not have.",
    "not_finite": "NaN or an infinite number.",
    "old_format": "A format of ML-Agents before `behaviors:`, or a section of it.",
    "out_of_range": "A number, or a number of entries, outside the legal range.",
    "path_refused": "A path. Paths never mean the server's disk.",
    "tag_refused": "A YAML tag that isn't one of the plain types.",
    "too_deep": "Nested too deeply.",
    "too_large": "More bytes, or more values, than a configuration may have.",
    "too_many_problems": "There are more problems than were listed.",
    "unknown_key": "Not a key of this section; the message names the nearest one and those that are legal.",
    "unsupported": "Legal in ML-Agents, but not supported by Ludus yet.",
    "wrong_type": "A value of another type than the key has.",
}
"""Every code that a `Problem` can have, with its meaning."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list indices that lead to a value."""

_PLAIN_KEY = re.compile(r'[^."\[\]]+')
_QUOTED_KEY = re.compile(r'"(?:[^"\\]|\\.)*"')
_INDEX = re.compile(r"\[([0-9]+)\]")


def join_path(parts: Iterable[str | int]) -> str:
    """Write a path: keys joined by dots, list indices in brackets."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        key = part if _PLAIN_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        path += f".{key}" if path else key
    return path


def parse_path(path: str) -> list[str | int]:
    """Read a path, the reverse of `join_path`. Raises ValueError if it isn't one."""
    parts: list[str | int] = []
    position = 0
    while position < len(path):
        index = _INDEX.match(path, position)
        if index is not None:
            parts.append(int(index[1]))
            position = index.end()
            continue
        start = position + 1 if parts and path[position] == "." else position
        match = _QUOTED_KEY.match(path, start) or _PLAIN_KEY.match(path, start)
        if match is None or (parts and start == position):
            raise ValueError(f"{path!r} is not a path of keys joined by dots")
        text = match.group()
        parts.append(json.loads(text) if text.startswith('"') else text)
        position = match.end()
    return parts


def split_path(path: str) -> list[str]:
    """Read a path of keys alone. Raises ValueError if it isn't one, has none, or has list indices."""
    keys = [part for part in parse_path(path) if isinstance(part, str)]
    if not keys or join_path(keys) != join_path(parse_path(path)):
        raise ValueError(f"{path!r} is not a path of keys joined by dots")
    return keys


def show(value: object, limit: int = 60) -> str:
    """Write a value for a message, cut to `limit` characters."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | None) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
