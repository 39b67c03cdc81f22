"""Middleware: request id, HEAD, limits of bodies, ETags, access log, metrics. `server.app.authentication` has the rest.

Pure ASGI, because the base class of Starlette's middleware buffers streamed answers and so would hold back events.
"""

import contextlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.to_thread
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.app.access import address_of, is_open
from server.app.authentication import PRIVATE
from server.kit.http.errors import BodyTooLarge, BodyTooSlow, TooManyBodies
from server.kit.http.problems import internal_problem, problem_response
from server.kit.http.resources import etag_of
from server.kit.http.telemetry import HttpTelemetry

log = structlog.get_logger(__name__)

NAMED = frozenset({"run", "attempt", "webhook", "ladder", "worker"})
"""Path parameters that are in the access log by name."""
FOR_BROWSERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
"""Headers of all answers: a browser takes them for what they say they are, and shows them to no other origin."""
SLOWEST_BYTES = 1 << 20
"""A body may take the time-out again for each so many bytes."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """Gives each request an id (`X-Request-Id`: the caller's, if well-formed), binds it to the log, counts requests.

    It is also the outermost edge: an unexpected exception is logged with its traceback and answered with 500.
    """

    def __init__(self, app: ASGIApp, telemetry: HttpTelemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started = time.perf_counter()
        status = 0
        waits = b"wait=" in scope["query_string"]

        async def answer(message: Message) -> None:
            nonlocal status, waits
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update({"X-Request-Id": request_id, **FOR_BROWSERS})
                waits |= headers.get("content-type", "").startswith("text/event-stream")
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:  # while it sent its body; status 0 says so
            pass
        except Exception:  # the edge of the process
            log.exception("request_failed", method=scope["method"], path=scope["path"])
            if not status:
                await internal_problem(scope)(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - started
            route = str(getattr(scope.get("route"), "path", "none"))
            self._telemetry.observe(scope["method"], route, status, None if waits else seconds)
            write = log.debug if is_open(scope) else log.info
            write(
                "request_answered",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(seconds, 4),
                **{name: key for name, key in scope.get("path_params", {}).items() if name in NAMED},
            )
            structlog.contextvars.unbind_contextvars("request_id", "actor")


class Heads:
    """Answers HEAD wherever GET is answered: with the status and the headers of GET (RFC 9110, section 9.3.2).

    All that is inside sees a GET, so that a route, its permission and its audit are declared once. An answer without an
    end, as an event stream, ends after its headers, and no file is read beyond its first block.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def headers_only(message: Message) -> None:
            if message["type"] != "http.response.start":
                raise ClientDisconnect
            await send(message)
            await send({"type": "http.response.body", "body": b""})

        inner = {**scope, "method": "GET"}
        try:
            with contextlib.suppress(ClientDisconnect):
                await self._app(inner, receive, headers_only)
        finally:
            scope.update({**inner, "method": "HEAD"})  # the route, for the access log


class Prefix:
    """Takes the prefix, below which a reverse proxy serves the API, away from the paths of requests.

    A path without it stays as it is, for clients that do not come by the proxy.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        """`prefix` is that of the settings."""
        self._app = app
        self._prefix = prefix.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["raw_path"].startswith(self._prefix + b"/"):
            length = len(self._prefix)  # of characters, too: the prefix is ASCII, without percent signs
            scope = {**scope, "path": scope["path"][length:], "raw_path": scope["raw_path"][length:]}
        await self._app(scope, receive, send)


AT_ONCE: Final = 3
"""Requests with a body of one token, or of one address without a token, that are handled at once; others wait."""
WAITING_BYTES: Final = 16 << 20
"""Most bytes of bodies that one of them may make wait."""


@dataclass
class _Sender:
    turns: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(AT_ONCE))
    bodies: int = 0
    held_bytes: int = 0


class Turns:
    """Lets requests with a body be handled one after the other, `AT_ONCE` of a sender at once. For one event loop.

    So a token that sends many at once takes no more than its share of the processor.
    """

    def __init__(self) -> None:
        self._senders: dict[str, _Sender] = {}

    @asynccontextmanager
    async def take(self, name: str, size: int) -> AsyncIterator[None]:
        """Wait for a turn of a sender with a body of `size` bytes, and hold it. Raises TooManyBodies."""
        sender = self._senders.setdefault(name, _Sender())
        if sender.bodies >= AT_ONCE and sender.held_bytes + size > WAITING_BYTES:
            raise TooManyBodies(WAITING_BYTES)
        sender.bodies += 1
        sender.held_bytes += size
        try:
            async with sender.turns:
                yield
        finally:
            sender.bodies -= 1
            sender.held_bytes -= size
            if not sender.bodies:
                del self._senders[name]


class BodyLimit:
    """Refuses a body of more than `limit` bytes with 413, by its announced length or, without one, while it arrives.

    `files` has the limits of the paths that take files, which are streamed to disk. A body that is not complete after
    `seconds`, and as long again for each `SLOWEST_BYTES` of it, is refused with 408: a client cannot hold a
    connection by sending slowly. A request whose body is complete waits for its turn; files have none.
    """

    def __init__(self, app: ASGIApp, limit: int, files: Mapping[str, int], seconds: float) -> None:
        self._turns = Turns()
        self._app = app
        self._limit = limit
        self._files = files
        self._seconds = seconds

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
        received, complete = 0, False
        began = time.monotonic()

        async def limited() -> Message:
            nonlocal received, complete
            if complete:  # the next message is the client's disconnect
                return await receive()
            allowed = self._seconds * (1 + received / SLOWEST_BYTES)
            try:
                with anyio.fail_after(began + allowed - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > limit:
                raise BodyTooLarge(limit)
            if complete and received and scope["path"] not in self._files:
                auth = scope["state"].get("auth")
                sender = (auth is not None and auth.principal.token_id) or address_of(scope)
                await turn.enter_async_context(self._turns.take(sender, received))
            return message

        async with AsyncExitStack() as turn:
            await self._app(scope, limited, send)


class EntityTags:
    """Gives each JSON answer to a GET a strong ETag, and answers 304 without a body to a client that has the same one.

    A client that polls then transfers only what has changed (RFC 9110, section 13.1.2). Browsers keep such answers and
    ask again before they use them; the answer to another token is another one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def answer(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                is_json = headers.get("content-type") == "application/json"
                if message["status"] == 200 and is_json and "etag" not in headers:
                    start = message  # held back until the body, which comes in one message, is known
                    return
            if start is None:
                await send(message)
            else:
                tagged = MutableHeaders(scope=start)
                tagged["ETag"] = etag = etag_of(message["body"])
                tagged["Cache-Control"] = PRIVATE
                tagged["Vary"] = "Authorization, Cookie, Ludus-Project, Accept"
                if etag in Headers(scope=scope).get("if-none-match", ""):
                    start["status"] = 304
                    del tagged["content-length"]
                    message["body"] = b""
                await send(start)
                await send(message)

        await self._app(scope, receive, answer)
