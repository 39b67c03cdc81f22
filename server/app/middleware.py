"""Middleware: request id, size limit of bodies, authentication, access log, metrics, audit.

Pure ASGI, because the base class of Starlette's middleware buffers streamed answers and so would hold back events.
"""

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access.tokens.checker import TokenChecker
from server.app.access import PROJECT_HEADER, RequestAudit, authenticated, is_open
from server.kit.db.database import Database
from server.kit.errors import LudusError, TokenRefused, Unavailable
from server.kit.http.auth import AuthenticatedRequest
from server.kit.http.errors import BodyTooLarge, BodyTooSlow, ForeignOrigin, TooManyRequests, Unauthenticated
from server.kit.http.problems import internal_problem, problem_response
from server.kit.http.telemetry import HttpTelemetry
from server.kit.listening import LOOPBACK
from server.kit.principal import ANONYMOUS, Principal, everything
from server.kit.rates import Rate
from server.kit.token_watcher import TokenWatcher
from server.kit.waking import on_loop

log = structlog.get_logger(__name__)

NAMED = frozenset({"run", "attempt", "webhook", "ladder", "worker"})
"""Path parameters that are in the access log by name."""
SLOWEST_BYTES = 1 << 20
"""A body may take the time-out again for each so many bytes."""
GRACE_SECONDS = 2.0
"""Time that an answer has to end by itself when its token is not valid any more."""
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
        except ClientDisconnect:  # while it sent its body; status 0 says so
            pass
        except Exception:  # the edge of the process
            log.exception("request_failed", method=scope["method"], path=scope["path"])
            if not status:
                await internal_problem(scope)(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - started
            route = str(getattr(scope.get("route"), "path", "none"))
            self._telemetry.observe(scope["method"], route, status, seconds)
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


class BodyLimit:
    """Refuses a body of more than `limit` bytes with 413, by its announced length or, without one, while it arrives.

    `files` has the limits of the paths that take files, which are streamed to disk. A body that is not complete after
    `seconds`, and as long again for each `SLOWEST_BYTES` of it, is refused with 408: a client cannot hold a
    connection by sending slowly.
    """

    def __init__(self, app: ASGIApp, limit: int, files: Mapping[str, int], seconds: float) -> None:
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
            return message

        await self._app(scope, limited, send)


class EntityTags:
    """Gives each JSON answer to a GET a weak ETag, and answers 304 without a body to a client that has the same one.

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
            if message["type"] == "http.response.start" and _is_document(message):
                start = message  # held back until the body, which comes in one message, is known
            elif start is None:
                await send(message)
            else:
                headers = MutableHeaders(scope=start)
                headers["ETag"] = etag = f'W/"{hashlib.sha256(message["body"]).hexdigest()[:32]}"'
                headers["Cache-Control"] = "private, no-cache"
                headers["Vary"] = "Authorization, Cookie, Ludus-Project, Accept"
                if etag in Headers(scope=scope).get("if-none-match", ""):
                    start["status"] = 304
                    del headers["content-length"]
                    message["body"] = b""
                await send(start)
                await send(message)

        await self._app(scope, receive, answer)


class Authentication:
    """Authenticates requests by `Authorization: Bearer TOKEN`, finds their project, limits rates, writes the audit log.

    Where no token is demanded (development on loopback) the server trusts every client that can reach the port. Web
    pages in a browser on this machine can, so requests that name a foreign host or come from a foreign origin are
    refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        database: Database,
        tokens: TokenChecker,
        watcher: TokenWatcher,
        *,
        requests: Rate,
        failures: Rate,
        demanded: bool,
        loopback: bool,
    ) -> None:
        self._app = app
        self._database = database
        self._tokens = tokens
        self._watcher = watcher
        self._requests = requests
        self._failures = failures
        self._demanded = demanded
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if not self._demanded and self._loopback and not _is_local(headers):
                raise ForeignOrigin
            if is_open(scope):
                auth, entry = None, None
            else:
                principal = await self._principal(headers, scope)
                auth, entry = authenticated(principal, scope, headers.get(PROJECT_HEADER))
        except LudusError as refusal:
            await problem_response(refusal, scope)(scope, receive, send)
            return
        if auth is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["auth"] = auth
        if entry is None:
            await self._read(auth, scope, receive, send)
        else:
            await self._change(auth, entry, scope, receive, send)

    async def _read(self, auth: AuthenticatedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that only reads, while its token is valid: a longer answer is cut off.

        Event streams and long polls have `GRACE_SECONDS` to send a last message.
        """
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        loop = asyncio.get_running_loop()
        reading = anyio.CancelScope()
        wake = on_loop(lambda: loop.call_later(GRACE_SECONDS, reading.cancel))
        with self._watcher.watch(auth.principal.token_id, wake) as watched:
            with reading:
                await self._app(scope, receive, answer)
            if reading.cancelled_caught and watched.refusal is not None:
                log.info("answer_cut_off", path=scope["path"], reason=watched.refusal.reason)
                if not begun:
                    await problem_response(watched.refusal, scope)(scope, receive, send)

    async def _change(
        self, auth: AuthenticatedRequest, entry: RequestAudit, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request that may change something, if its token is still valid when its body has arrived."""
        with self._watcher.watch(auth.principal.token_id, lambda: None) as watched:

            async def received() -> Message:
                message = await receive()
                if watched.refusal is not None:
                    raise watched.refusal
                return message

            await self._audited(auth, entry, scope, received, send)

    async def _principal(self, headers: Headers, scope: Scope) -> Principal:
        """Return the principal of a request, and count the request. Raises Unauthenticated, TokenRefused,
        TooManyRequests.
        """
        client = scope.get("client")
        address = client[0] if client else "unknown"
        principal = await self._identify(headers, address)
        structlog.contextvars.bind_contextvars(actor=principal.name)
        if principal.name != ANONYMOUS:
            _refuse(self._requests, self._requests.count(principal.token_id or address))
        return principal

    async def _identify(self, headers: Headers, address: str) -> Principal:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            if self._demanded:
                _refuse(self._requests, self._requests.count(address))
                raise Unauthenticated
            return everything(ANONYMOUS)
        known = self._tokens.recall(token)
        if known is not None:
            return known
        _refuse(self._failures, self._failures.exhausted(address))
        try:
            return await anyio.to_thread.run_sync(self._tokens.check, token)
        except TokenRefused as refusal:
            if refusal.reason == "unknown" and not self._demanded:
                return everything(ANONYMOUS)  # a token of another server
            log.info("token_refused", reason=refusal.reason, client=address)
            _refuse(self._failures, self._failures.count(address))
            if refusal.reason == "unknown":
                raise Unauthenticated from None
            raise

    async def _audited(
        self, auth: AuthenticatedRequest, entry: RequestAudit, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request that may change something; if its transaction wrote no audit entry, write one."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not entry.entered:
                await anyio.to_thread.run_sync(self._enter, auth, entry, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:
            await anyio.to_thread.run_sync(self._enter, auth, entry, 500)
            raise

    def _enter(self, auth: AuthenticatedRequest, entry: RequestAudit, status: int) -> None:
        try:
            with self._database.within(auth.narrowed).write() as session:
                entry.enter(session, status)
        except Unavailable as error:  # the request changed nothing, so nothing has to be undone
            log.warning("audit_entry_lost", error=str(error))


def _refuse(rate: Rate, wait: float | None) -> None:
    if wait is not None:
        raise TooManyRequests(rate.per_minute, wait)


def _is_local(headers: Headers) -> bool:
    names: Iterable[str] = [f"http://{headers.get('host', 'localhost')}", *headers.getlist("origin")]
    return all(_host(name) in LOOPBACK for name in names)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_document(start: Message) -> bool:
    """Whether an answer is a JSON document; those have one message for their body, and its length."""
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("content-type") == "application/json" and "etag" not in headers


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
