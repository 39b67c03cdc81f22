"""Builds dataclasses from their JSON form: resources of the HTTP API, and messages of a collector.

It is no module of `ludus.schemas`, because a collector does not need the resources, which take long to import.
"""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Reader = Callable[[Any], Any]


def read_record(kind: type[Record], data: object) -> Record:
    """Build a record from its JSON form. Raises ValueError if it isn't one."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{type(data).__name__} is no {kind.__name__}")  # noqa: TRY004  # one error for all of it
    readers = _field_readers(kind)  # type: ignore[arg-type]  # a class is hashable
    values = {name: value if value is None else readers[name](value) for name, value in data.items() if name in readers}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error


@cache
def _field_readers(kind: type) -> Mapping[str, Reader]:
    return {name: _reader(hint) for name, hint in get_type_hints(kind).items()}


@cache
def _reader(hint: object) -> Reader:
    """Return the function that builds a value of a type from its JSON form, which is not null."""
    arguments = get_args(hint)
    if get_origin(hint) in {Union, UnionType}:
        # The member whose `kind` a value has, else the first one.
        members = [member for member in arguments if member is not type(None)]
        first = _reader(members[0])
        kinds = {
            kind: _reader(member)
            for member in members[1:]
            if isinstance(member, type) and dataclasses.is_dataclass(member)
            for kind in get_args(get_type_hints(member).get("kind"))
        }
        return lambda value: (kinds.get(value.get("kind"), first) if isinstance(value, Mapping) else first)(value)
    if get_origin(hint) is tuple:
        item = _nullable(arguments[0])
        return lambda value: tuple(map(item, value)) if isinstance(value, list) else value
    if get_origin(hint) in {Mapping, dict}:
        keys, read = arguments[0], _nullable(arguments[1])

        def read_mapping(value: object) -> object:
            if not isinstance(value, Mapping):
                raise ValueError(f"{type(value).__name__} is no mapping")  # noqa: TRY004  as above
            # Keys of JSON are strings.
            return {int(key) if keys is int else key: read(item) for key, item in value.items()}

        return read_mapping
    if hint is datetime:
        return lambda value: datetime.fromisoformat(str(value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return partial(read_record, hint)
    # A section of the configuration checks itself. Most readers of records have no pydantic installed.
    validate: Reader | None = getattr(hint, "model_validate", None)
    if validate is not None:
        return validate
    return lambda value: value


def _nullable(hint: object) -> Reader:
    read = _reader(hint)
    return lambda value: None if value is None else read(value)
