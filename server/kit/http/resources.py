"""Answers: resources (`ludus.schemas`) built from rows, their JSON form and strong ETag, and lists of them."""

import hashlib
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, create_model
from starlette.responses import JSONResponse

from server.kit.db.texts import JsonObject
from server.kit.http.errors import PreconditionFailed

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
    names = {field.name for field in fields(kind)} - given.keys()  # type: ignore[arg-type]  # a dataclass
    values = {name: value for name in names if (value := getattr(source, name, _MISSING)) is not _MISSING}
    built: Kind = _adapter(kind).validate_python(values | given)  # type: ignore[arg-type]  # a class is hashable
    return built


def dump(body: object) -> JsonObject:
    """Return the JSON form of a resource."""
    document: JsonObject = _adapter(type(body)).dump_python(body, mode="json")  # type: ignore[arg-type]  # a class is hashable
    return document


def etag_of(body: bytes) -> str:
    """Return the ETag of a document."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def check_match(if_match: str, present: object) -> None:
    """Compare the ETags that `If-Match` names with the resource that there is (RFC 9110, section 13.1.1).

    Raises PreconditionFailed.
    """
    etags = {etag.strip() for etag in if_match.split(",")}
    if etags != {"*"} and etag_of(bytes(JSONResponse(dump(present)).body)) not in etags:
        raise PreconditionFailed


def list_of(
    name: str, kind: type[Any], field: str, base: type[BaseModel] = BaseModel, **more: object
) -> type[BaseModel]:
    """Return the model of an answer that has a list of resources in `field`; `more` are further fields."""
    items: Any = list[kind]  # type: ignore[valid-type]  # known when the module of a route is imported
    definitions: JsonObject = {field: (items, ...), **more}
    return create_model(name, __base__=base, __doc__=f"`{kind.__name__}` resources.", **definitions)
