"""Middleware that authenticates requests: by a token, or by the session of a browser; rates, open requests, audit."""

import asyncio
from typing import Final

import anyio
import anyio.to_thread
import structlog
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access.checker import SessionChecker, TokenChecker
from server.app.access import PROJECT_HEADER, RequestAudit, address_of, authenticated, is_open, is_sign_in
from server.app.browsers import is_local, is_same_origin, read_cookie
from server.app.services import Services
from server.kit.errors import LudusError, TokenRefused, Unavailable
from server.kit.http.auth import READING, AuthenticatedRequest
from server.kit.http.errors import CrossOrigin, ForeignOrigin, SessionEnded, Unauthenticated, refuse_excess
from server.kit.http.problems import problem_response
from server.kit.listening import LOOPBACK
from server.kit.principal import ANONYMOUS, Principal, everything
from server.kit.rates import Rate
from server.kit.token_watcher import on_loop

log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 2.0
"""Time that an answer has to end by itself when its token is not valid any more."""
SUSPECT_THREADS: Final = 2
"""Threads that check texts of addresses with too many failures: a flood of wrong tokens gets no more queries."""
PRIVATE: Final = "private, no-cache"
"""`Cache-Control` of answers that depend on who asks: a browser asks again before it shows one, and is refused then."""


class Authentication:
    """Authenticates requests by `Authorization: Bearer TOKEN` or a session's cookie, finds their project, limits rates,
    writes the audit log.

    Browsers send the cookie whichever page asks, so a request with one that may change something must come from a page
    of this server. Where no token is demanded (development on loopback) the server trusts every client that can reach
    the port, and a session, as a shared link makes one, narrows what its browser sees. Web pages in a browser on this
    machine can reach it, so requests that name a foreign host or come from a foreign origin are refused.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        settings = services.settings.api
        self._app = app
        self._database = services.database
        self._tokens = services.tokens
        self._sessions = services.sessions
        self._attempts = services.attempts
        self._suspects = anyio.CapacityLimiter(SUSPECT_THREADS)
        self._watcher = services.watcher
        self._requests = Rate(settings.requests_per_minute)
        self._demanded = settings.demands_token
        self._loopback = settings.host in LOOPBACK
        self._proxied = bool(settings.proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            auth, entry = await self._authenticated(Headers(scope=scope), scope)
        except LudusError as refusal:
            await problem_response(refusal, scope)(scope, receive, send)
            return
        if auth is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["auth"] = auth

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Cache-Control", PRIVATE)
            await send(message)

        if entry is None:
            await self._read(auth, scope, receive, answer)
        else:
            await self._change(auth, entry, scope, receive, answer)

    async def _authenticated(
        self, headers: Headers, scope: Scope
    ) -> tuple[AuthenticatedRequest | None, RequestAudit | None]:
        """Return who asks, None where that does not matter; and the audit entry, None of a request that only reads.

        Raises LudusError: the request is refused.
        """
        if not self._demanded and self._loopback and not is_local(headers):
            raise ForeignOrigin
        address = address_of(scope)
        if is_open(scope):
            if is_sign_in(scope):
                if not is_same_origin(headers, proxied=self._proxied):
                    raise CrossOrigin  # else any page could sign a browser in with a token of its own
                refuse_excess(self._requests, self._requests.count(address))
            return None, None
        principal = await self._principal(headers, scope, address)
        changes_by_session = principal.session_id is not None and scope["method"] not in READING
        if changes_by_session and not is_same_origin(headers, proxied=self._proxied):
            raise CrossOrigin
        project = headers.get(PROJECT_HEADER)
        if project is None and scope["method"] in READING:  # a link, as that of a download, has no headers
            project = QueryParams(scope["query_string"]).get("project")
        return authenticated(principal, scope, project)

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
        with self._watcher.watch(auth.principal.credential_id, wake) as watched:
            with reading:
                await self._app(scope, receive, answer)
            if reading.cancelled_caught and watched.refusal is not None:
                log.info("answer_cut_off", path=scope["path"], code=watched.refusal.code)
                if not begun:
                    await problem_response(watched.refusal, scope)(scope, receive, send)

    async def _change(
        self, auth: AuthenticatedRequest, entry: RequestAudit, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request that may change something, if its token is still valid when its body has arrived.

        If its transaction wrote no audit entry, one is written.
        """
        with self._watcher.watch(auth.principal.credential_id, lambda: None) as watched:

            async def received() -> Message:
                message = await receive()
                if watched.refusal is not None:
                    raise watched.refusal
                return message

            async def answer(message: Message) -> None:
                if message["type"] == "http.response.start" and not entry.entered:
                    await anyio.to_thread.run_sync(self._enter, auth, entry, message["status"])
                await send(message)

            try:
                await self._app(scope, received, answer)
            except Exception:
                await anyio.to_thread.run_sync(self._enter, auth, entry, 500)
                raise

    async def _principal(self, headers: Headers, scope: Scope, address: str) -> Principal:
        """Return the principal of a request, and count the request.

        Raises Unauthenticated, TokenRefused, SessionEnded, TooManyRequests.
        """
        principal = await self._identify(headers, scope, address)
        structlog.contextvars.bind_contextvars(actor=principal.name)
        if principal.name != ANONYMOUS:
            refuse_excess(self._requests, self._requests.count(principal.token_id or address))
        return principal

    async def _identify(self, headers: Headers, scope: Scope, address: str) -> Principal:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        cookie = read_cookie(headers, scope)
        try:
            if scheme.lower() == "bearer" and token:
                return await self._check(self._tokens, token, address)
            if cookie is not None:
                return await self._check(self._sessions, cookie, address)
        except SessionEnded:
            if self._demanded:
                raise
        except TokenRefused as refusal:
            if refusal.reason != "unknown":
                raise
        else:
            if self._demanded:
                refuse_excess(self._requests, self._requests.count(address))
        if self._demanded:
            raise Unauthenticated
        return everything(ANONYMOUS)  # without a token, or with one of another server

    async def _check(self, checker: TokenChecker | SessionChecker, text: str, address: str) -> Principal:
        principal = checker.recall(text)
        if principal is not None:
            return principal
        limiter = self._suspects if self._attempts.suspects(address) else None
        return await anyio.to_thread.run_sync(self._attempts.check, checker, text, address, limiter=limiter)

    def _enter(self, auth: AuthenticatedRequest, entry: RequestAudit, status: int) -> None:
        try:
            with self._database.within(auth.narrowed).write() as session:
                entry.enter(session, status)
        except Unavailable as error:  # the request changed nothing, so nothing has to be undone
            log.warning("audit_entry_lost", error=str(error))
