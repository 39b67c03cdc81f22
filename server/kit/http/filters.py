"""The grammar of `filter` and `order_by`, a subset of AIP-160 and AIP-132.

    filter    = condition { AND condition }
    condition = field operator value            operator: = != < > <= >=
    value     = "quoted, with \\" and \\\\" | a bare word, number or time

    state = RUNNING AND tags = "nightly" AND created_at >= 2026-01-01T00:00:00Z

`order_by` is one field, optionally followed by `asc` or `desc`. Anything else (OR, NOT, parentheses,
functions) is an error that says where it stands; a filter is never half understood.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from server.kit.http.errors import FilterInvalid, OrderInvalid
from server.kit.listing import Condition, Operator, Order, Value

MAX_LENGTH = 2000
MAX_CONDITIONS = 20
EQUALITY = frozenset({Operator.EQ, Operator.NE})
COMPARISONS = frozenset(Operator)


@dataclass(frozen=True)
class Field:
    """A field that can be filtered by: how its values are read, and which operators make sense."""

    read: Callable[[str], Value]
    operators: frozenset[Operator] = COMPARISONS


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<operator>!=|<=|>=|=|<|>)|(?P<word>[^\s"'()=<>!,]+))""", re.DOTALL
)


def parse_filter(text: str, fields: Mapping[str, Field]) -> tuple[Condition, ...]:
    """Read a filter. Empty text is no condition. Raises FilterInvalid with the position (0-based) of the mistake."""
    if len(text) > MAX_LENGTH:
        raise FilterInvalid(f"the filter has {len(text)} characters; {MAX_LENGTH} are allowed", MAX_LENGTH)
    tokens = _tokens(text)
    conditions: list[Condition] = []
    while tokens:
        if conditions:
            token = tokens.pop(0)
            if token.kind == "word" and token.text.upper() in {"OR", "NOT"}:
                raise FilterInvalid(f"{token.text} is not supported; join conditions with AND", token.position)
            if token.kind != "word" or token.text != "AND":
                raise FilterInvalid(f"expected AND, found {token.text!r}", token.position)
        conditions.append(_condition(tokens, fields, len(text)))
    if len(conditions) > MAX_CONDITIONS:
        raise FilterInvalid(f"the filter has {len(conditions)} conditions; {MAX_CONDITIONS} are allowed", 0)
    return tuple(conditions)


def parse_order(text: str, fields: Collection[str], default: Order) -> Order:
    """Read `order_by`: a field, and `asc` (the default, as in AIP-132) or `desc`. Empty text is the default order."""
    words = text.split()
    if not words:
        return default
    direction = words[1].lower() if len(words) == 2 else "asc"
    if len(words) > 2 or words[0] not in fields or direction not in {"asc", "desc"}:
        raise OrderInvalid(text, sorted(fields))
    return Order(words[0], descending=direction == "desc")


def word(text: str) -> str:
    """Read any printable text; a `*` at its end stands for anything."""
    if not text.isprintable():
        raise ValueError("text of printable characters")
    return text


def choice(values: type) -> Callable[[str], str]:
    """Read one of the values of a StrEnum."""
    allowed = [str(value) for value in values]  # type: ignore[attr-defined]  # the type of an enum class is iterable

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return text

    return read


def integer(text: str) -> int:
    """Read a whole number. Which ones a field takes, its column says (`server.kit.db.keyset.check`)."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError("a whole number")
    return int(text)


def flag(text: str) -> bool:
    """Read `true` or `false`."""
    if text not in {"true", "false"}:
        raise ValueError("true or false")
    return text == "true"


def time(text: str) -> float:
    """Read an RFC 3339 time (a missing zone means UTC) or seconds since 1970; returns seconds."""
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,20})?", text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError("a time like 2026-01-31T12:00:00Z") from error
    if not math.isfinite(seconds):
        raise ValueError("a time like 2026-01-31T12:00:00Z")
    return seconds


READERS: Final[Mapping[type, Callable[[str], Value]]] = {bool: flag, int: integer, str: word, datetime: time}
"""How a value is read, by the type of its column (`server.kit.db.keyset.kind_of`)."""


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            advice = '; write a text in double quotes, as in "a b"' if text[start] in "'\"" else ""
            raise FilterInvalid(f"cannot read {text[start : start + 20]!r}{advice}", start)
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match.group(kind), match.start(kind)))
        position = match.end()
    return tokens


def _condition(tokens: list[_Token], fields: Mapping[str, Field], end: int) -> Condition:
    name = _take(tokens, {"word"}, f"a field ({', '.join(fields)})", end)
    if name.text not in fields:
        raise FilterInvalid(f"unknown field {name.text!r}; known: {', '.join(fields)}", name.position)
    field = fields[name.text]
    operator = _take(tokens, {"operator"}, "an operator (= != < > <= >=)", end)
    if Operator(operator.text) not in field.operators:
        raise FilterInvalid(f"{name.text} is compared with = and != only", operator.position)
    value = _take(tokens, {"word", "string"}, "a value", end)
    text = re.sub(r"\\(.)", r"\1", value.text[1:-1], flags=re.DOTALL) if value.kind == "string" else value.text
    try:
        return Condition(name.text, Operator(operator.text), field.read(text))
    except ValueError as error:
        raise FilterInvalid(f"{name.text} needs {error}, found {text!r}", value.position) from error


def _take(tokens: list[_Token], kinds: set[str], description: str, end: int) -> _Token:
    if not tokens:
        raise FilterInvalid(f"expected {description} at the end", end)
    token = tokens.pop(0)
    if token.kind not in kinds:
        raise FilterInvalid(f"expected {description}, found {token.text!r}", token.position)
    return token
