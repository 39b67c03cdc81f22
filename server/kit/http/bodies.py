"""Request bodies: JSON with an envelope, or a bare configuration as YAML with the envelope in the query."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from server.kit.db.texts import JsonObject
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType
from server.kit.json_limits import find_excess

Model = TypeVar("Model", bound=BaseModel)

JSON_TYPES = frozenset({"application/json", "text/json", "application/merge-patch+json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})

MAX_VALUES = 60_000
"""Most values in a body of JSON."""
MAX_DEPTH = 64
"""Deepest nesting of a body of JSON."""

MAX_DIGITS = 4300
"""Longest whole number in a body of JSON, in digits: the most that Python reads."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""One half of a character beyond 16 bits, as JSON escapes it. UTF-8 itself has none."""

EXAMPLE = """\
behaviors:
  CartPole:
    trainer_type: ppo
    max_steps: 150000
"""
"""A configuration, for the documentation."""


@dataclass(frozen=True)
class Body:
    """A request's body as it came, with its media type."""

    content: bytes
    media_type: str

    def read(self, model: type[Model], parameters: Mapping[str, object]) -> Model:
        """Read the body as `model`. A YAML body is its `config`; `parameters` of the query set fields of either kind.

        Raises UnsupportedMediaType, BodyInvalid, RequestValidationError.
        """
        if self.media_type not in YAML_TYPES | JSON_TYPES:
            raise UnsupportedMediaType(self.media_type)
        try:
            text = self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BodyInvalid(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
        data: object = {"config": text} if self.media_type in YAML_TYPES else _read_json(text)
        if isinstance(data, dict):
            data |= {name: value for name, value in parameters.items() if value is not None}
        try:
            return model.model_validate(data)
        except ValidationError as error:
            mistakes = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
            raise RequestValidationError(mistakes) from error


def _read_json(text: str) -> object:
    """Read JSON within the limits of this module. Raises BodyInvalid."""
    excess = find_excess(text, values=MAX_VALUES, depth=MAX_DEPTH)
    if excess is not None:
        limit = f"{MAX_DEPTH} levels" if excess.of == "depth" else f"{MAX_VALUES} values"
        raise BodyInvalid(f"it has more than {limit}, in line {excess.line}, column {excess.column}")
    try:
        data: object = json.loads(text, object_pairs_hook=_without_duplicates, parse_int=_integer)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BodyInvalid("a text in it has half a surrogate pair, which nothing can store or answer") from error
    except ValueError as error:
        raise BodyInvalid(f"it is not JSON: {error}") from error
    return data


async def read_body(request: Request) -> Body:
    """Receive the body."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return Body(await request.body(), media_type)


BodyDep = Annotated[Body, Depends(read_body)]


def declare_body(model: type[BaseModel], example: str) -> JsonObject:
    """Declare a body of both kinds for OpenAPI, for a route's `openapi_extra`. `example` is a configuration as YAML."""
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}},
                "application/yaml": {"schema": {"type": "string"}, "example": example},
            },
        }
    }


def declare_json(model: type[BaseModel], *, required: bool = True) -> JsonObject:
    """Declare a body of JSON alone for OpenAPI, for a route's `openapi_extra`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise BodyInvalid(f"a number in it has more than {MAX_DIGITS} digits")
    return int(digits)


def _without_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        result[key] = value
    return result
