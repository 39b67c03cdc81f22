"""Builds dataclasses from their JSON form: resources of the HTTP API, and messages of a collector.

It is no module of `ludus.schemas`, because a collector does not need the resources, which take long to import.
"""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
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


_hints = cache(get_type_hints)


def _convert(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in {Union, UnionType}:
        members = [member for member in get_args(hint) if member is not type(None)]
        return _convert(next((member for member in members[1:] if _is_of_kind(member, value)), members[0]), value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_convert(get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if get_origin(hint) in {Mapping, dict}:
        if not isinstance(value, Mapping):
            raise ValueError(f"{type(value).__name__} is no mapping")
        keys, values = get_args(hint)  # keys of JSON are strings
        return {int(key) if keys is int else key: _convert(values, item) for key, item in value.items()}
    if hint is datetime:
        return datetime.fromisoformat(str(value))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value)
    return value


def _is_of_kind(member: Any, value: Any) -> bool:
    """Return whether a value has the `kind` that distinguishes the resources of a union."""
    if not dataclasses.is_dataclass(member) or not isinstance(value, Mapping):
        return False
    return value.get("kind") in get_args(get_type_hints(member).get("kind"))
