"""Builds records from their JSON form."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def read_record(kind: type[Record], data: Any) -> Record:
    """Build a record from its JSON form. Raises ValueError if it isn't one."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{type(data).__name__} is no {kind.__name__}")  # noqa: TRY004  # one error for all of it
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values = {name: _convert(hints[name], value) for name, value in data.items() if name in hints}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _convert(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in {Union, UnionType}:
        return _convert(next(member for member in get_args(hint) if member is not type(None)), value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_convert(get_args(hint)[0], item) for item in value)
    if hint is datetime:
        return datetime.fromisoformat(str(value))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value)
    return value
