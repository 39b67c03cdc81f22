"""Answers: resources (`ludus.schemas`) built from rows, their JSON form, and lists of them."""

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, create_model

Kind = TypeVar("Kind")
_MISSING = object()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def resource(kind: type[Kind], source: object, /, **given: object) -> Kind:
    """Build a resource from the attributes of `source` that are called like its fields; `given` replaces some.

    Values are converted: seconds since 1970 to times in UTC, JSON objects to nested resources. A field without an
    attribute takes its default.
    """
    names = [each.name for each in fields(kind) if each.name not in given]  # type: ignore[arg-type]  # a dataclass
    found = {name: getattr(source, name, _MISSING) for name in names}
    values = {name: value for name, value in found.items() if value is not _MISSING}
    built: Kind = _adapter(kind).validate_python(values | given)  # type: ignore[arg-type]  # a class is hashable
    return built


def dump(body: object) -> dict[str, Any]:
    """Return the JSON form of a resource."""
    document: dict[str, Any] = _adapter(type(body)).dump_python(body, mode="json")  # type: ignore[arg-type]  # a class is hashable
    return document


def list_of(name: str, kind: type[Any], field: str, base: type[BaseModel] = BaseModel, **more: Any) -> type[BaseModel]:
    """Return the model of an answer that has a list of resources in `field`; `more` are further fields."""
    items: Any = list[kind]  # type: ignore[valid-type]  # known when the module of a route is imported
    definitions: dict[str, Any] = {field: (items, ...), **more}
    return create_model(name, __base__=base, __doc__=f"`{kind.__name__}` resources.", **definitions)
