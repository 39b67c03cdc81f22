"""Parameters of paths and queries: types that several routes share, and the refusal of unknown ones."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, StringConstraints
from starlette.convertors import StringConvertor, register_url_convertor  # codespell:ignore convertors

from ludus.metric_keys import full_key
from ludus.validation import NO_NUL, Form
from server.kit.http.auth import READING
from server.kit.http.fields import Name


class NameConvertor(StringConvertor):
    """`{run:name}` in a path: ends at a colon, which begins a verb. `/v1/runs/x:stop` is not the run `x:stop`."""

    regex = "[^/:]+"


class TokenConvertor(StringConvertor):
    """`{token:token}` in a path: an id of a token, and never `/v1/tokens/self`."""

    regex = "tok_[0-9a-z]+"


class WorkerConvertor(StringConvertor):
    """`{worker:worker}` in a path: a host's name, or a slot's id, `host/pid/start`."""

    regex = "[^/:]+(?:/[0-9]+/[0-9]+)?"


register_url_convertor("name", NameConvertor())
register_url_convertor("token", TokenConvertor())
register_url_convertor("worker", WorkerConvertor())

RunKey = Annotated[Name, Path(description="A run's id, or a name: the newest run of that name.")]
WorkerKey = Annotated[
    str,
    NO_NUL,
    Path(max_length=200, description="A slot's id, `host/pid/start`, or a host's name: all of its slots."),
]
CheckpointKey = Annotated[Name, Path(max_length=40, description="A checkpoint's id, `latest` or `best`.")]
ConfigName = Annotated[Name, Path(description="Name of a stored configuration.")]
FileName = Annotated[
    str,
    Form("the name of a file, as the list of them has it", r"^[^\x00-\x1f\\]+$"),
    Path(max_length=500, description="Name of a file."),
]
AttemptNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of an attempt.")]
MetricKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200),
    NO_NUL,
    AfterValidator(full_key),
]
"""A metric, as in `Environment/Cumulative Reward`, or a short name of one."""
Version = Annotated[int, Query(ge=1, le=2**31 - 1, description="Version of the configuration.")]

_known: dict[str, dict[str, bool]] = {}
"""By method and path of a route: its parameters, and whether one may be repeated."""


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise RequestValidationError for each parameter that the route does not know, or takes once and has twice."""
    if not request.url.query:
        return
    route = request.scope["route"]
    methods = route.methods or set()
    key = f"{sorted(methods)} {route.path}"
    if key not in _known:
        _known[key] = dict(_query_parameters(route.dependant))
        if methods <= READING:
            _known[key]["project"] = False  # in a link, in place of the header
    parameters = _known[key]
    names = [name for name, _ in request.query_params.multi_items()]
    mistakes = []
    for name in dict.fromkeys(names):
        if name not in parameters:
            legal = ", ".join(sorted(parameters)) or "none"
            words = f"is not a parameter of this request; there are: {legal}"
        elif not parameters[name] and names.count(name) > 1:
            words = "is given more than once"
        else:
            continue
        mistakes.append({"type": "unknown_parameter", "loc": ("query", name), "msg": words})
    if mistakes:
        raise RequestValidationError(mistakes)


def _query_parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    for field in dependant.query_params:
        yield field.alias, "list[" in str(field.field_info.annotation)
    for dependency in dependant.dependencies:
        yield from _query_parameters(dependency)
