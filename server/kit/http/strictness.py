"""The query of a request has no parameter that its route does not know: a mistyped one would change what is done."""

from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from server.kit.http.auth import READING

_known: dict[str, dict[str, bool]] = {}
"""By method and path of a route: its parameters, and whether one may be repeated."""


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise RequestValidationError for each parameter that the route does not know, or takes once and has twice."""
    if not request.url.query:
        return
    route = request.scope["route"]
    known = _parameters(route)
    given = request.query_params.multi_items()
    names = [name for name, _ in given]
    mistakes: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        if name not in known:
            legal = ", ".join(sorted(known)) or "none"
            words = f"is not a parameter of this request; there are: {legal}"
        elif not known[name] and names.count(name) > 1:
            words = "is given more than once"
        else:
            continue
        mistakes.append({"type": "unknown_parameter", "loc": ("query", name), "msg": words})
    if mistakes:
        raise RequestValidationError(mistakes)


def _parameters(route: APIRoute) -> dict[str, bool]:
    methods = route.methods or set()
    key = f"{sorted(methods)} {route.path}"
    if key not in _known:
        _known[key] = dict(_walk(route.dependant))
        if methods <= READING:
            _known[key]["project"] = False  # in a link, in place of the header
    return _known[key]


def _walk(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    for field in dependant.query_params:
        yield field.alias, "list[" in str(field.field_info.annotation)
    for each in dependant.dependencies:
        yield from _walk(each)
