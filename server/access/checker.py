"""Checks the tokens and cookies of requests, and watches open requests that were made with one.

Whose a secret text is, is remembered for a few seconds, so that a request costs no query. A revoked token therefore
stays valid for as long in processes that have just seen it. Refusals are not remembered. The memory has the SHA-256 of
texts, never texts.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from ludus.schemas.tokens import Scope
from server.access.models import Token
from server.access.repository import USE_SECONDS, Known, KnownSession, SessionRepository, TokenRepository
from server.access.secrets import SessionCookie, is_session, parse, same
from server.kit.db.database import Database
from server.kit.errors import TokenRefused, Unauthenticated, Unavailable
from server.kit.http.errors import SessionEnded, TooManyFailures
from server.kit.principal import CONFIGURED, Principal, everything, including
from server.kit.rates import Rate
from server.kit.token_watcher import TokenWatcher

REMEMBERED_SECONDS: Final = 5.0
"""Time for which a revoked token may still be accepted."""
REMEMBERED: Final = 4096
"""Texts in memory; the memory is emptied when it is full."""


@dataclass(frozen=True, slots=True)
class _Memory:
    principal: Principal
    until: float
    """On the monotonic clock."""


class PrincipalMemory:
    """Principals by the text that was checked. Safe to share between threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._memory: dict[bytes, _Memory] = {}

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a text, if it was remembered lately. Takes microseconds."""
        memory = self._memory.get(fingerprint_of(text))
        return memory.principal if memory is not None and self._monotonic() < memory.until else None

    def remember(self, text: str, principal: Principal, seconds: float) -> None:
        """Remember a principal for as long as its text is valid, at most `REMEMBERED_SECONDS`."""
        with self._lock:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            until = self._monotonic() + min(seconds, REMEMBERED_SECONDS)
            self._memory[fingerprint_of(text)] = _Memory(principal, until)

    def forget(self) -> None:
        """Empty the memory: this process has revoked a token, or ended a session."""
        with self._lock:
            self._memory.clear()


def fingerprint_of(text: str) -> bytes:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="replace")).digest()


_log = structlog.get_logger(__name__)


class TokenChecker:
    """Finds the principal of a token. Safe to share between threads.

    `configured` is the token of the settings, which may do everything.
    """

    def __init__(
        self, database: Database, configured: str | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database.within(None)
        self._configured = None if configured is None else fingerprint_of(configured)
        self._memory = PrincipalMemory(monotonic)

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a token if that is known without a query. Takes microseconds."""
        if self._configured is not None and same(fingerprint_of(text).hex(), self._configured.hex()):
            return everything(CONFIGURED)
        return self._memory.recall(text)

    def check(self, text: str) -> Principal:
        """Return the principal of a token. Raises TokenRefused, DatabaseUnavailable."""
        principal = self.recall(text)
        if principal is not None:
            return principal
        parsed = parse(text)
        if parsed is None:
            raise TokenRefused("unknown")
        token_id, digest = parsed
        with self._database.read() as session:
            stored = TokenRepository(session).find(token_id)
        if stored is None or not same(stored.token.digest, digest):
            raise TokenRefused("unknown")
        seconds = seconds_left(stored)
        principal = principal_of(stored.token)
        self._memory.remember(text, principal, seconds)
        if stored.token.last_used_at is None or stored.now - stored.token.last_used_at >= USE_SECONDS:
            self._note_use(token_id)
        return principal

    def forget(self) -> None:
        """Empty the memory: this process has revoked a token."""
        self._memory.forget()

    def _note_use(self, token_id: str) -> None:
        try:
            with self._database.write() as session:
                TokenRepository(session).note_use(token_id)
        except Unavailable as error:  # only information for people: it must not refuse a request
            _log.warning("token_use_not_noted", token_id=token_id, error=str(error))


def watch_tokens(database: Database, seconds: float | None = None) -> TokenWatcher:
    """Return a watcher of the tokens in the database; see `TokenWatcher` for `seconds`."""
    return TokenWatcher(lambda token_ids: refused_tokens(database, token_ids), seconds)


def refused_tokens(database: Database, token_ids: Collection[str]) -> Mapping[str, TokenRefused]:
    """Return those of some tokens that are not valid any more, by id."""
    with database.within(None).read() as session:
        stored = TokenRepository(session).find_all(token_ids)
    refusals = {}
    for token_id in token_ids:
        try:
            seconds_left(stored.get(token_id))
        except TokenRefused as refusal:
            refusals[token_id] = refusal
    return refusals


def seconds_left(stored: Known | None) -> float:
    """Return the seconds for which a token is valid, maybe infinite. Raises TokenRefused if it is not."""
    if stored is None:
        raise TokenRefused("unknown")
    token = stored.token
    if token.revoked_at is not None:
        raise TokenRefused("revoked")
    if token.expires_at is None:
        return math.inf
    if token.expires_at <= stored.now:
        raise TokenRefused("expired")
    return token.expires_at - stored.now


def principal_of(token: Token) -> Principal:
    """Return the principal that a token stands for."""
    scopes = including(Scope(scope) for scope in token.scopes)
    return Principal(
        token.name, scopes, token.project, token_id=token.id, run_id=token.run_id, ladder_id=token.ladder_id
    )


class SessionChecker:
    """Finds the principal of a session. Safe to share between threads.

    `configured` is the token of the settings: sessions that were made with another one have ended.
    """

    def __init__(
        self, database: Database, configured: str | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database.within(None)
        self._configured = configured
        self._memory = PrincipalMemory(monotonic)

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a cookie's value if that is known without a query. Takes microseconds."""
        return self._memory.recall(text)

    def check(self, text: str) -> Principal:
        """Return the principal of a cookie's value.

        Raises TokenRefused (an unknown cookie, or a token that is not valid any more), SessionEnded,
        DatabaseUnavailable.
        """
        principal = self.recall(text)
        if principal is not None:
            return principal
        cookie = SessionCookie.parse(text)
        if cookie is None:
            raise TokenRefused("unknown")
        with self._database.read() as session:
            stored = SessionRepository(session).find(cookie.session_id)
        if stored is None or not same(stored.session.digest, cookie.digest):
            raise TokenRefused("unknown")
        seconds = session_seconds_left(stored)
        principal = self._principal(stored, cookie)
        self._memory.remember(text, principal, seconds)
        if stored.session.last_used_at is None or stored.now - stored.session.last_used_at >= USE_SECONDS:
            self._note_use(stored)
        return principal

    def forget(self) -> None:
        """Empty the memory: this process has ended a session, or revoked a token."""
        self._memory.forget()

    def _principal(self, stored: KnownSession, cookie: SessionCookie) -> Principal:
        if stored.token is not None:
            principal = principal_of(stored.token)
        else:
            present = "" if self._configured is None else cookie.digest_of_configured(self._configured)
            if not same(stored.session.configured_digest or "", present) or not present:
                raise SessionEnded
            principal = everything(CONFIGURED)
        return replace(principal, session_id=stored.session.id, chosen_project=stored.session.project)

    def _note_use(self, stored: KnownSession) -> None:
        try:
            with self._database.write() as session:
                SessionRepository(session).note_use(stored.session.id)
                if stored.session.token_id is not None:
                    TokenRepository(session).note_use(stored.session.token_id)
        except Unavailable as error:  # only information for people: it must not refuse a request
            _log.warning("session_use_not_noted", session_id=stored.session.id, error=str(error))


def session_seconds_left(stored: KnownSession) -> float:
    """Return the seconds for which a session is valid. Raises SessionEnded, or TokenRefused for its token."""
    if stored.session.ended_at is not None or stored.session.expires_at <= stored.now:
        raise SessionEnded
    of_token = math.inf if stored.token is None else seconds_left(Known(stored.token, stored.now))
    return min(stored.session.expires_at - stored.now, of_token)


def watch_credentials(database: Database, seconds: float | None = None) -> TokenWatcher:
    """Return a watcher of tokens and sessions in the database; see `TokenWatcher` for `seconds`."""

    def refused(ids: Collection[str]) -> Mapping[str, Unauthenticated]:
        sessions = [id_ for id_ in ids if is_session(id_)]
        tokens = [id_ for id_ in ids if not is_session(id_)]
        refusals: dict[str, Unauthenticated] = {}
        if tokens:
            refusals.update(refused_tokens(database, tokens))
        if sessions:
            refusals.update(_refused_sessions(database, sessions))
        return refusals

    return TokenWatcher(refused, seconds)


def _refused_sessions(database: Database, session_ids: Collection[str]) -> Mapping[str, Unauthenticated]:
    with database.within(None).read() as session:
        stored = SessionRepository(session).find_all(session_ids)
    refusals: dict[str, Unauthenticated] = {}
    for session_id in session_ids:
        try:
            if session_id not in stored:  # with its token, when the run or ladder was deleted that it was for
                raise SessionEnded
            session_seconds_left(stored[session_id])
        except Unauthenticated as refusal:
            refusals[session_id] = refusal
    return refusals


class FailedAttempts:
    """Counts failures by address. Safe to share between threads.

    Many clients can have one address (NAT, a proxy), so a right text is accepted whatever others have tried. Guessing
    gains nothing by that: a secret has 256 random bits.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate

    def suspects(self, address: str) -> bool:
        """Whether an address has had too many failures: its checks should take few threads."""
        return self._rate.exhausted(address) is not None

    def check(self, checker: TokenChecker | SessionChecker, text: str, address: str) -> Principal:
        """Return the principal of a text that came from an address.

        Raises TokenRefused; TooManyFailures instead, after too many failures; and what the checker raises.
        """
        try:
            return checker.check(text)
        except TokenRefused as refusal:
            _log.info("token_refused", reason=refusal.reason, client=address)
            wait = self._rate.count(address)
            if wait is not None:
                raise TooManyFailures(self._rate.per_minute, wait) from None
            raise
