"""Answers with problems: RFC 9457 `application/problem+json` for each error, and for those of the framework."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Scope

from server.kit.errors import InvalidConfig, LudusError, ProblemList
from server.kit.http.errors import (
    MEDIA_TYPE,
    NotReady,
    RangeNotSatisfiable,
    RequestError,
    TooManyRequests,
    Unauthenticated,
    status_of,
)

MAX_ERRORS = 100
"""Mistakes that an answer lists, at most."""


class ProblemItem(BaseModel):
    """One mistake among several."""

    path: str
    """Where: dotted keys, for instance `behaviors.CartPole.hyperparameters.batch_size`."""
    code: str
    """Stable name of the mistake."""
    message: str
    """The mistake and its correction."""
    location: str
    """The part of the request that `path` refers to: `config`, `body`, `query`, `path`, `header` or `server`."""
    line: int | None = None
    """Line of the key in the configuration, from 1, if that was sent as text; of a missing key, that of the nearest
    parent. Null also where an override has set the value."""
    column: int | None = None
    """Column of the key in this line, from 1."""


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str
    """`urn:ludus:problem:` and the code."""
    title: str
    """The code in words."""
    status: int
    """HTTP status."""
    detail: str
    """The cause, then the remedy."""
    instance: str
    """Path of the request."""
    code: str
    """Stable name for programs."""
    request_id: str
    """Names the request in the server's log."""
    errors: list[ProblemItem] = []
    """The mistakes, where there can be several; at most 100."""


def problem_response(error: LudusError, scope: Scope) -> JSONResponse:
    """Answer with a domain error."""
    status = status_of(type(error))
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_seconds)
    if isinstance(error, RangeNotSatisfiable):
        headers["Content-Range"] = f"bytes */{error.size}"
    if status == 401:
        headers.update(Unauthenticated.headers)
    if status == 503:
        headers["Retry-After"] = "2"
    items: list[ProblemItem] = []
    if isinstance(error, NotReady):
        items = [
            ProblemItem(path=name, code=reason.code, message=str(reason), location="server")
            for name, reason in error.reasons.items()
        ]
    elif isinstance(error, ProblemList):
        location = "config" if isinstance(error, InvalidConfig) else "body"
        items = [ProblemItem(**asdict(found), location=location) for found in error.problems]
    return _answer(scope, status, error.code, error.message, items, headers)


def _message(found: Mapping[str, Any]) -> str:
    """Return the mistake of a value. Of a number with too many digits pydantic says only that it is no number."""
    value = found.get("input")
    digits = len(value) if isinstance(value, str) else value.bit_length() / 3.33 if isinstance(value, int) else 0
    if found["type"] in {"int_parsing", "int_parsing_size", "int_type", "float_type"} and digits > 18:
        return f"Input should be a number that 64 bits hold: whole ones lie between {-(2**63)} and {2**63 - 1}"
    return str(found["msg"]).removeprefix("Value error, ")


def internal_problem(scope: Scope) -> JSONResponse:
    """Answer that the server has a defect; the log has the traceback under the request's id."""
    detail = "The server failed; this is a defect. Its log has the traceback under this request_id."
    return _answer(scope, 500, "internal", detail, [], {})


async def on_ludus_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for the domain's errors."""
    assert isinstance(error, LudusError)
    return problem_response(error, request.scope)


async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with the findings of FastAPI's validation. Values are not repeated: they could be secrets."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    items = [
        ProblemItem(
            path=".".join(str(part) for part in found["loc"][1:]),
            code=found["type"],
            message=_message(found),
            location=str(found["loc"][0]),
        )
        for found in errors[:MAX_ERRORS]
    ]
    first = items[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"The request is not valid. {first.location} {first.path}: {first.message}{more}."
    return _answer(request.scope, 422, "invalid_request", detail, items, {})


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer with the router's own exceptions: no such route, no such method."""
    assert isinstance(error, HTTPException)
    code, detail = {
        404: ("route_not_found", "There is nothing at this path. See /docs for what there is."),
        405: ("method_not_allowed", "This path does not know this method. See the Allow header."),
    }.get(error.status_code, ("invalid_request", str(error.detail)))
    answer = _answer(request.scope, error.status_code, code, detail, [], dict(error.headers or {}))
    if error.status_code == 405:  # the router itself names the methods of the first route only
        routes: Sequence[Route] = request.app.state.routes
        fitting = (route for route in routes if route.path_regex.match(request.url.path))
        answer.headers["Allow"] = ", ".join(sorted({method for route in fitting for method in route.methods or ()}))
    return answer


def _answer(
    scope: Scope, status: int, code: str, detail: str, items: Sequence[ProblemItem], headers: Mapping[str, str]
) -> JSONResponse:
    body = Problem(
        type=f"urn:ludus:problem:{code}",
        title=code.replace("_", " ").capitalize(),
        status=status,
        detail=detail,
        instance=scope["path"],
        code=code,
        request_id=scope.get("state", {}).get("request_id", ""),
        errors=list(items),
    )
    return JSONResponse(body.model_dump(), status, headers=dict(headers), media_type=MEDIA_TYPE)
