"""Problems: every way to fail answers with one shape, RFC 9457 `application/problem+json`, with a stable `code`.

The domain's errors (`server.kit.errors`) know kinds, not statuses; the table here maps them. Errors that only exist
over HTTP (a filter that doesn't parse, a body that is too large) are leaves of the same tree that name their status.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from server.kit.db.texts import JsonObject
from server.kit.errors import (
    DatabaseUnavailable,
    ErrorKind,
    LudusError,
    ProjectForbidden,
    ScopeMissing,
    TokenRefused,
    Unavailable,
)
from server.kit.errors import Unauthenticated as NotAuthenticated
from server.kit.rates import Rate

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


class RequestError(LudusError):
    """Parent of the errors that only exist over HTTP; they name their status."""

    kind = ErrorKind.INVALID
    status: ClassVar[int] = 422
    headers: ClassVar[Mapping[str, str]] = {}


class FilterInvalid(RequestError, code="invalid_filter"):
    """The filter doesn't parse."""

    reason: str
    position: int
    sentence = "The filter is wrong at position {position}: {reason}."


class OrderInvalid(RequestError, code="invalid_order"):
    """The order is not one of this list."""

    text: str
    fields: Sequence[str]

    def _sentence(self) -> str:
        metric = "metric (the word itself: the first of `metrics`)"
        names = ", ".join(metric if field == "metric" else field for field in self.fields)
        return f"{self.text[:100]!r} is not an order of this list; write one field ({names}), then asc or desc."


class PageTokenInvalid(RequestError, code="invalid_page_token"):
    """The page token is damaged or belongs to another query."""

    sentence = (
        "The page token is damaged or belongs to another filter or order. Use next_page_token as it was answered, with "
        "the same filter and order_by, or begin at the first page."
    )


class IdempotencyKeyInvalid(RequestError, code="invalid_idempotency_key"):
    """The Idempotency-Key header is not usable."""

    sentence = "Idempotency-Key must be 1 to 255 printable ASCII characters, for instance a UUID."


class IdempotencyKeyReused(RequestError, code="idempotency_key_reused"):
    """The key was used for another request."""

    key: str
    sentence = "The Idempotency-Key {key!r} was used with another content. Use a new key for a new request."


class RequestInFlight(RequestError, code="request_in_flight"):
    """The first request with this key is still being answered."""

    kind = ErrorKind.CONFLICT
    status = 409
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}
    key: str
    sentence = "The first request with the Idempotency-Key {key!r} is still being answered. Repeat it later."


class BodyInvalid(RequestError, code="invalid_body"):
    """The body cannot be read at all."""

    status = 400
    reason: str
    sentence = "The body cannot be read: {reason}."


class BodyTooLarge(RequestError, code="body_too_large"):
    """The body exceeds the limit."""

    status = 413
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}
    limit: int
    sentence = (
        "The body is larger than {limit} bytes, which is the limit. Configurations are small texts; for files the "
        "server's operator sets the limits (LUDUS_STORAGE__DEMONSTRATION_BYTES, LUDUS_STORAGE__CHECKPOINT_BYTES)."
    )


class BodyTooSlow(RequestError, code="body_too_slow"):
    """The body arrives too slowly."""

    status = 408
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}
    sentence = "The body did not arrive in time. Send it again, over a connection that is fast enough."


class TooManyRequests(RequestError, code="too_many_requests"):
    """One token, or one address, has made more requests than it may."""

    kind = ErrorKind.EXHAUSTED
    status = 429
    per_minute: int
    retry_seconds: float

    def __post_init__(self) -> None:
        self.retry_seconds = max(1, math.ceil(self.retry_seconds))

    sentence = (
        "More than {per_minute} requests in a minute, which is the limit. Try again in {retry_seconds} s. The server's "
        "operator sets the limits (LUDUS_API__REQUESTS_PER_MINUTE, LUDUS_API__FAILURES_PER_MINUTE)."
    )


class ProjectInvalid(RequestError, code="invalid_project"):
    """The header `Ludus-Project` (in a link: the parameter `project`) names no project."""

    sentence = (
        "Ludus-Project (in a link: the parameter project) must be the name of one project: 1 to 64 letters, digits, "
        "dots, underscores and hyphens. All projects at once (`*`) can be read and deleted from, and nothing else."
    )


class TooManyFailures(TooManyRequests):
    """One address has tried more wrong tokens than it may."""

    sentence = (
        "More than {per_minute} wrong tokens in a minute came from this address. Correct the token: a right one is "
        "accepted at once."
    )


class TooManyBodies(RequestError, code="too_many_bodies"):
    """One token, or one address, has sent more bodies than the server reads at once."""

    kind = ErrorKind.EXHAUSTED
    status = 429
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}
    limit: int
    sentence = (
        "Requests of this token, or address, with more than {limit} bytes of bodies wait already. Send fewer at once."
    )


class RangeNotSatisfiable(RequestError, code="range_not_satisfiable"):
    """The file does not have the requested part."""

    status = 416
    size: int
    sentence = "The file has {size} bytes, and none of those that Range asks for. Leave Range out to get all of it."


class PreconditionFailed(RequestError, code="precondition_failed"):
    """The resource is not the one that `If-Match` names: it was changed meanwhile."""

    status = 412
    sentence = (
        "What was to be changed is not what the ETag in If-Match was for any more. Nothing was changed. Read it again, "
        "decide again, and send its new ETag."
    )


class UnsupportedMediaType(RequestError, code="unsupported_media_type"):
    """The body is neither JSON nor YAML; a body of PATCH may also be a merge patch."""

    status = 415
    headers: ClassVar[Mapping[str, str]] = {
        "Accept-Post": "application/json, application/yaml",
        "Accept-Patch": "application/merge-patch+json",
    }
    given: str
    sentence = (
        "A body of type {given!r:.102} is not understood. Send application/json or application/yaml; a PATCH may be "
        "application/merge-patch+json, too."
    )


class UnsupportedFileType(UnsupportedMediaType):
    """The body is not a bare file."""

    headers: ClassVar[Mapping[str, str]] = {"Accept-Post": "application/octet-stream"}
    sentence = (
        "A body of type {given!r:.102} is not understood here. Send the file itself as application/octet-stream (not "
        "as a form): `ludus demonstration upload FILE` and `ludus checkpoint upload FILE` do."
    )


class Unauthenticated(RequestError, code="unauthenticated"):
    """The request has no token, or a wrong one."""

    kind = ErrorKind.UNAUTHENTICATED
    status = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer realm="ludus"'}
    sentence = "This server wants a token that it knows. Send `Authorization: Bearer TOKEN` (LUDUS_TOKEN for the CLI)."


class SessionEnded(NotAuthenticated, code="session_ended"):
    """The session of a browser has ended: its user signed out, it expired, or the server has another token now."""

    sentence = "The session has ended. Sign in again."


class TokenBound(RequestError, code="token_bound"):
    """The token is bound to one run or ladder, and the request does not name this one by its id."""

    kind = ErrorKind.FORBIDDEN
    status = 403
    kind_of_object: str
    bound: str
    sentence = (
        "The token is for {kind_of_object} {bound} alone, in paths that have this id. Ask an administrator for a token "
        "with more rights."
    )


class ForeignOrigin(RequestError, code="foreign_origin"):
    """A foreign web page may have made the request through a local browser."""

    kind = ErrorKind.FORBIDDEN
    status = 403
    sentence = (
        "Without a token this server answers requests to and from this machine's own names only (localhost, 127.0.0.1, "
        "::1). Set LUDUS_API__TOKEN to use another name."
    )


class CrossOrigin(ForeignOrigin):
    """A page of another origin may have made the request with the browser's session."""

    sentence = (
        "A session works for requests from the server's own pages only. Scripts send a token (`Authorization: Bearer "
        "TOKEN`). Behind a reverse proxy, pass the header Host on, or name the proxy in LUDUS_API__PROXIES and let it "
        "send X-Forwarded-Host."
    )


class ProblemTypeNotFound(RequestError, code="problem_type_not_found"):
    """No problem has this code."""

    kind = ErrorKind.NOT_FOUND
    status = 404
    name: str
    sentence = "No problem has the code {name!r}. docs/api.md lists all of them."


class TooManyWaiters(RequestError, code="too_many_waiters"):
    """Too many requests wait for a state at once."""

    kind = ErrorKind.EXHAUSTED
    status = 429
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}
    limit: int
    sentence = "{limit} requests wait for a state already. Ask again later, or without `wait`."


class TooManyStreams(RequestError, code="too_many_streams"):
    """Too many event streams are open."""

    kind = ErrorKind.EXHAUSTED
    status = 429
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}
    limit: int
    sentence = "{limit} event streams are open already. Try again later, or read the events page by page."


class NotReady(Unavailable, code="not_ready"):
    """A service that the server needs does not answer."""

    reasons: Mapping[str, LudusError]

    def _sentence(self) -> str:
        return "The server is not ready: " + " ".join(f"{name}: {error}" for name, error in self.reasons.items())


def refuse_excess(rate: Rate, wait: float | None) -> None:
    """Raise TooManyRequests if a rate says that one has to wait for so many seconds (None: it does not)."""
    if wait is not None:
        raise TooManyRequests(rate.per_minute, wait)


def status_of(error: type[LudusError]) -> int:
    """Return the HTTP status of a class of errors."""
    return error.status if issubclass(error, RequestError) else STATUS[error.kind]


Responses = dict[int | str, JsonObject]

COMMON: Mapping[int, Sequence[str]] = {
    401: [Unauthenticated.code, TokenRefused.code, SessionEnded.code],
    403: [ForeignOrigin.code, ProjectForbidden.code, ScopeMissing.code, TokenBound.code],
    408: [BodyTooSlow.code],
    413: [BodyTooLarge.code],
    422: ["invalid_request", ProjectInvalid.code],
    429: [TooManyRequests.code, TooManyBodies.code],
    500: ["internal"],
    503: [DatabaseUnavailable.code],
}
"""Status -> codes of what any route can answer with."""


def problems(*classes: type[LudusError]) -> Responses:
    """Declare which problems a route can answer with, for its `responses`, besides those that any route can."""
    statuses = {status: list(codes) for status, codes in COMMON.items()}
    for error in classes:
        statuses.setdefault(status_of(error), []).append(error.code)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": "Problem: " + ", ".join(f"`{code}`" for code in codes), "content": content}
        for status, codes in sorted(statuses.items())
    }


def deleted(*classes: type[LudusError], description: str = "It is gone.") -> Responses:
    """Declare the answers of a route that deletes, for its `responses`."""
    return {204: {"description": description}, **problems(*classes)}
