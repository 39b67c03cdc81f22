"""Problems: every way to fail answers with one shape, RFC 9457 `application/problem+json`, with a stable `code`.

The domain's errors (`server.kit.errors`) know kinds, not statuses; the table here maps them. Errors that only exist
over HTTP (a filter that doesn't parse, a body that is too large) are leaves of the same tree that name their status.
"""

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Scope

from server.kit.errors import (
    DatabaseUnavailable,
    ErrorKind,
    InvalidConfig,
    InvalidEdit,
    LudusError,
    ProjectForbidden,
    ScopeMissing,
    TokenRefused,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"

STATUS: Mapping[ErrorKind, int] = {
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.GONE: 410,
    ErrorKind.CONFLICT: 409,
    ErrorKind.INVALID: 422,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.EXHAUSTED: 429,
    ErrorKind.UNAVAILABLE: 503,
}


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


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str
    """`urn:ludus:problem:` and the code."""
    title: str
    """The code in words."""
    status: int
    """HTTP status."""
    detail: str
    """What happened, then what to do."""
    instance: str
    """Path of the request."""
    code: str
    """Stable name for programs."""
    request_id: str
    """Names the request in the server's log."""
    errors: list[ProblemItem] = []
    """All mistakes, where there can be several."""


class RequestError(LudusError):
    """Parent of the errors that only exist over HTTP; they name their status."""

    kind = ErrorKind.INVALID
    status: ClassVar[int] = 400
    headers: ClassVar[Mapping[str, str]] = {}


class FilterInvalid(RequestError):
    """The filter doesn't parse."""

    code = "invalid_filter"

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"The filter is wrong at position {position}: {reason}.")
        self.position = position


class OrderInvalid(RequestError):
    """The order is not one of this list."""

    code = "invalid_order"

    def __init__(self, text: str, fields: Sequence[str]) -> None:
        names = ", ".join("metric (the word itself: the first of `metrics`)" if f == "metric" else f for f in fields)
        super().__init__(f"{text[:100]!r} is not an order of this list; write one field ({names}), then asc or desc.")


class PageTokenInvalid(RequestError):
    """The page token is damaged or belongs to another query."""

    code = "invalid_page_token"

    def __init__(self) -> None:
        super().__init__(
            "The page token is damaged or belongs to another filter or order. Use next_page_token as it was answered, "
            "with the same filter and order_by, or begin at the first page."
        )


class IdempotencyKeyInvalid(RequestError):
    """The Idempotency-Key header is not usable."""

    code = "invalid_idempotency_key"

    def __init__(self) -> None:
        super().__init__("Idempotency-Key must be 1 to 255 printable ASCII characters, for instance a UUID.")


class IdempotencyKeyReused(RequestError):
    """The key was used for another request."""

    code = "idempotency_key_reused"
    status = 422

    def __init__(self, key: str) -> None:
        super().__init__(f"The Idempotency-Key {key!r} was used with another content. Use a new key for a new request.")


class RequestInFlight(RequestError):
    """The first request with this key is still being answered."""

    kind = ErrorKind.CONFLICT
    code = "request_in_flight"
    status = 409
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The first request with the Idempotency-Key {key!r} is still being answered. Repeat it later."
        )


class BodyInvalid(RequestError):
    """The body cannot be read at all."""

    code = "invalid_body"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The body cannot be read: {reason}.")


class BodyTooLarge(RequestError):
    """The body exceeds the limit."""

    code = "body_too_large"
    status = 413
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is larger than {limit} bytes, which is the limit. Configurations are small texts; for files the "
            "server's operator sets the limits (LUDUS_STORAGE__DEMONSTRATION_BYTES, LUDUS_STORAGE__CHECKPOINT_BYTES)."
        )


class BodyTooSlow(RequestError):
    """The body arrives too slowly."""

    code = "body_too_slow"
    status = 408
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    def __init__(self) -> None:
        super().__init__("The body did not arrive in time. Send it again, over a connection that is fast enough.")


class TooManyRequests(RequestError):
    """More requests than one token, or one address, may make."""

    kind = ErrorKind.EXHAUSTED
    code = "too_many_requests"
    status = 429

    def __init__(self, per_minute: int, retry_seconds: float) -> None:
        self.retry_seconds = max(1, math.ceil(retry_seconds))
        super().__init__(
            f"More than {per_minute} requests in a minute, which is the limit. Try again in {self.retry_seconds} s. "
            "The server's operator sets the limits (LUDUS_API__REQUESTS_PER_MINUTE, LUDUS_API__FAILURES_PER_MINUTE)."
        )


class ProjectInvalid(RequestError):
    """The header `Ludus-Project` names no project."""

    code = "invalid_project"

    def __init__(self) -> None:
        super().__init__(
            "Ludus-Project must be the name of one project: 1 to 64 letters, digits, dots, underscores and hyphens. "
            "All projects at once (`*`) can be read and deleted from, and nothing else."
        )


class RangeNotSatisfiable(RequestError):
    """A part of a file was asked for that it does not have."""

    code = "range_not_satisfiable"
    status = 416

    def __init__(self, size: int) -> None:
        super().__init__(
            f"The file has {size} bytes, and none of those that Range asks for. Leave Range out to get all of it."
        )
        self.size = size


class UnsupportedMediaType(RequestError):
    """The body is neither JSON nor YAML."""

    code = "unsupported_media_type"
    status = 415
    headers: ClassVar[Mapping[str, str]] = {"Accept-Post": "application/json, application/yaml"}

    def __init__(self, given: str) -> None:
        super().__init__(
            f"A body of type {given[:100]!r} is not understood. Send application/json or application/yaml."
        )


class UnsupportedFileType(UnsupportedMediaType):
    """The body is not a bare file."""

    headers: ClassVar[Mapping[str, str]] = {"Accept-Post": "application/octet-stream"}

    def __init__(self, given: str) -> None:
        RequestError.__init__(
            self,
            f"A body of type {given[:100]!r} is not understood here. Send the file itself as application/octet-stream "
            "(not as a form): `ludus demonstration upload FILE` and `ludus checkpoint upload FILE` do.",
        )


class Unauthenticated(RequestError):
    """No token, or a wrong one."""

    kind = ErrorKind.UNAUTHENTICATED
    code = "unauthenticated"
    status = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer realm="ludus"'}

    def __init__(self) -> None:
        super().__init__(
            "This server wants a token that it knows. Send `Authorization: Bearer TOKEN` (LUDUS_TOKEN for the CLI)."
        )


class ForeignOrigin(RequestError):
    """A request that a foreign web page may have made through a local browser."""

    kind = ErrorKind.FORBIDDEN
    code = "foreign_origin"
    status = 403

    def __init__(self) -> None:
        super().__init__(
            "Without a token this server answers requests to and from this machine's own names only (localhost, "
            "127.0.0.1, ::1). Set LUDUS_API__TOKEN to use another name."
        )


class TooManyWaiters(RequestError):
    """Too many requests wait for a state at once."""

    kind = ErrorKind.EXHAUSTED
    code = "too_many_waiters"
    status = 429
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests wait for a state already. Ask again later, or without `wait`.")


class TooManyStreams(RequestError):
    """Too many event streams are open."""

    kind = ErrorKind.EXHAUSTED
    code = "too_many_streams"
    status = 429
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} event streams are open already. Try again later, or read the events page by page.")


class NotReady(Unavailable):
    """Something that the server needs does not answer."""

    code = "not_ready"

    def __init__(self, reasons: Mapping[str, LudusError]) -> None:
        super().__init__("The server is not ready: " + " ".join(f"{name}: {error}" for name, error in reasons.items()))
        self.reasons = reasons


def status_of(error: type[LudusError]) -> int:
    """Return the HTTP status of a class of errors."""
    if issubclass(error, RequestError):
        return error.status
    return STATUS[error.kind]


Responses = dict[int | str, dict[str, Any]]

COMMON: Mapping[int, Sequence[str]] = {
    400: [ProjectInvalid.code],
    401: [Unauthenticated.code, TokenRefused.code],
    403: [ForeignOrigin.code, ProjectForbidden.code, ScopeMissing.code],
    408: [BodyTooSlow.code],
    413: [BodyTooLarge.code],
    422: ["invalid_request"],
    429: [TooManyRequests.code],
    500: ["internal"],
    503: [DatabaseUnavailable.code],
}
"""Status -> codes of what any route can answer with."""


def problems(*classes: type[LudusError]) -> Responses:
    """Declare which problems a route can answer with, for its `responses`, besides those that any route can."""
    found = {status: list(codes) for status, codes in COMMON.items()}
    for error in classes:
        found.setdefault(status_of(error), []).append(error.code)
    return {status: problem_declaration(status, codes) for status, codes in sorted(found.items())}


def problem_declaration(status: int, codes: Sequence[str]) -> dict[str, Any]:
    """Describe one problem response for OpenAPI."""
    return {
        "description": f"{HTTPStatus(status).phrase}: " + ", ".join(f"`{code}`" for code in codes),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


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
    return _answer(scope, status, error.code, error.message, _items(error), headers)


def invalid_request(error: RequestValidationError, scope: Scope) -> JSONResponse:
    """Answer with what FastAPI's validation found, all at once. Values are not repeated: they could be secrets."""
    items = [
        ProblemItem(
            path=".".join(str(part) for part in found["loc"][1:]),
            code=found["type"],
            message=_message(found),
            location=str(found["loc"][0]),
        )
        for found in error.errors()
    ]
    first = items[0]
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    detail = f"The request is not valid. {first.location} {first.path}: {first.message}{more}."
    return _answer(scope, 422, "invalid_request", detail, items, {})


def _message(found: Mapping[str, Any]) -> str:
    """Return what is wrong with a value. Of a number with too many digits pydantic says only that it is none."""
    value = found.get("input")
    digits = len(value) if isinstance(value, str) else value.bit_length() / 3.33 if isinstance(value, int) else 0
    if found["type"] in {"int_parsing", "int_parsing_size", "int_type", "float_type"} and digits > 18:
        return f"Input should be a number that 64 bits hold: whole ones lie between {-(2**63)} and {2**63 - 1}"
    return str(found["msg"]).removeprefix("Value error, ")


def http_problem(error: HTTPException, scope: Scope) -> JSONResponse:
    """Answer with what the router found: no such route, no such method."""
    code, detail = {
        404: ("route_not_found", "There is nothing at this path. See /docs for what there is."),
        405: ("method_not_allowed", "This path does not know this method. See the Allow header."),
    }.get(error.status_code, ("invalid_request", str(error.detail)))
    return _answer(scope, error.status_code, code, detail, [], dict(error.headers or {}))


def internal_problem(scope: Scope) -> JSONResponse:
    """Answer that this is a defect of the server; the log has the traceback under the request's id."""
    detail = "The server failed; this is a defect. Its log has the traceback under this request_id."
    return _answer(scope, 500, "internal", detail, [], {})


async def on_ludus_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for the domain's errors."""
    assert isinstance(error, LudusError)
    return problem_response(error, request.scope)


async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for FastAPI's validation."""
    assert isinstance(error, RequestValidationError)
    return invalid_request(error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for the router's own exceptions."""
    assert isinstance(error, HTTPException)
    answer = http_problem(error, request.scope)
    if error.status_code == 405:
        answer.headers["Allow"] = ", ".join(_allowed(request))
    return answer


def _allowed(request: Request) -> list[str]:
    """Return the methods that the path has. (The router itself names those of the first route only.)"""
    routes: Sequence[Route] = request.app.state.routes
    fitting = (route for route in routes if route.path_regex.match(request.url.path))
    return sorted({method for route in fitting for method in route.methods or ()})


def _items(error: LudusError) -> list[ProblemItem]:
    if isinstance(error, NotReady):
        return [
            ProblemItem(path=name, code=reason.code, message=str(reason), location="server")
            for name, reason in error.reasons.items()
        ]
    if not isinstance(error, InvalidConfig | InvalidEdit):
        return []
    location = "config" if isinstance(error, InvalidConfig) else "body"
    return [
        ProblemItem(path=found.path, code=found.code, message=found.message, location=location)
        for found in error.problems
    ]


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
