"""What happens to every request before and after its route: id, size limit, authentication, access log, metrics.

Pure ASGI, because the base class of Starlette's middleware buffers streamed answers and so would hold back events.
"""

import hmac
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import (
    BodyTooLarge,
    ForeignOrigin,
    RequestError,
    Unauthenticated,
    internal_problem,
    problem_response,
)
from server.http.telemetry import HttpTelemetry

log = structlog.get_logger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/version", "/docs", "/openapi.json"})
"""Answered without a token: probes have none, and the documentation is no secret."""
NAMED = frozenset({"run", "epoch", "webhook", "ladder", "worker"})
"""Parameters of paths that are in the access log by name: whom a request was about."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """Gives each request an id (`X-Request-Id`: the caller's, where it has a sane form), binds it to the log, counts.

    It is also the outermost edge: what nobody else understood is logged with its traceback and answered with 500.
    """

    def __init__(self, app: ASGIApp, telemetry: HttpTelemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:  # the edge of the process
            log.exception("request_failed", method=scope["method"], path=scope["path"])
            if not status:
                await internal_problem(scope)(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - started
            route = str(getattr(scope.get("route"), "path", "none"))
            self._telemetry.observe(scope["method"], route, status, seconds)
            write = log.debug if scope["path"] in OPEN_PATHS else log.info
            write(
                "request_answered",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(seconds, 4),
                **{name: key for name, key in scope.get("path_params", {}).items() if name in NAMED},
            )
            structlog.contextvars.unbind_contextvars("request_id")


class BodyLimit:
    """Refuses a body of more than `limit` bytes with 413, by its announced length or, without one, while it arrives.

    `files` has the limits of the paths that take files, which are streamed to disk.
    """

    def __init__(self, app: ASGIApp, limit: int, files: Mapping[str, int]) -> None:
        self._app = app
        self._limit = limit
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._files.get(scope["path"], self._limit)
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            await problem_response(BodyTooLarge(limit), scope)(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise BodyTooLarge(limit)
            return message

        await self._app(scope, limited, send)


class Authentication:
    """Demands `Authorization: Bearer TOKEN` where a token is set.

    Without one (development on loopback) the server trusts whoever can reach the port, and that includes every web
    page that a browser on this machine shows: requests that name a foreign host or come from a foreign origin are
    refused.
    """

    def __init__(self, app: ASGIApp, token: str | None, loopback: bool) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await problem_response(refusal, scope)(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = Headers(scope=scope)
        if self._token is not None:
            return None if scope["path"] in OPEN_PATHS or self._knows_token(headers) else Unauthenticated()
        if self._loopback and not _from_here(headers):
            return ForeignOrigin()
        return None

    def _knows_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        assert self._token is not None
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token)


def _from_here(headers: Headers) -> bool:
    names: Iterable[str] = [f"http://{headers.get('host', 'localhost')}", *headers.getlist("origin")]
    return all(_host(name) in LOOPBACK_NAMES for name in names)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
