"""Checks the tokens and cookies of requests, and watches open requests that were made with one.

Whose a secret text is, is remembered for a few seconds, so that a request costs no query. A revoked token therefore
stays valid for as long in processes that have just seen it. Refusals are not remembered. The memory has the SHA-256 of
texts, never texts.
"""

import hashlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
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


_log = structlog.get_logger(__name__)


def fingerprint_of(text: str) -> bytes:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="replace")).digest()


class Checker(ABC):
    """Finds the principal of a secret text, and remembers it. Safe to share between threads."""

    def __init__(
        self, database: Database, configured: str | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`configured` is the token of the settings, which may do everything."""
        self._database = database.within(None)
        self._configured = configured
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._memory: dict[bytes, tuple[Principal, float]] = {}
        """Principals by fingerprints, and until when they are remembered on the monotonic clock."""

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a text if that is known without a query. Takes microseconds."""
        principal, until = self._memory.get(fingerprint_of(text), (None, 0.0))
        return principal if self._monotonic() < until else None

    def check(self, text: str) -> Principal:
        """Return the principal of a text. Raises TokenRefused (also for an unknown cookie, or one whose token is not
        valid any more), SessionEnded, DatabaseUnavailable.
        """
        principal = self.recall(text)
        if principal is None:
            principal, seconds = self._load(text)
            with self._lock:
                if len(self._memory) >= REMEMBERED:
                    self._memory.clear()
                until = self._monotonic() + min(seconds, REMEMBERED_SECONDS)
                self._memory[fingerprint_of(text)] = principal, until
        return principal

    def forget(self) -> None:
        """Empty the memory: this process has revoked a token, or ended a session."""
        with self._lock:
            self._memory.clear()

    @abstractmethod
    def _load(self, text: str) -> tuple[Principal, float]:
        """Return the principal of a text by the database, and the seconds for which the text is valid."""

    def _note_use(self, last_used_at: float | None, read_at: float, **ids: str | None) -> None:
        """Write down the use of a session and a token, now and then."""
        if last_used_at is not None and read_at - last_used_at < USE_SECONDS:
            return
        try:
            with self._database.write() as session:
                if (session_id := ids.get("session_id")) is not None:
                    SessionRepository(session).note_use(session_id)
                if (token_id := ids.get("token_id")) is not None:
                    TokenRepository(session).note_use(token_id)
        except Unavailable as error:  # only information for people: it must not refuse a request
            _log.warning("use_not_noted", **ids, error=str(error))


class TokenChecker(Checker):
    """Finds the principal of a token."""

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a text if that is known without a query. Takes microseconds."""
        if self._configured is not None and same(fingerprint_of(text).hex(), fingerprint_of(self._configured).hex()):
            return everything(CONFIGURED)
        return super().recall(text)

    def _load(self, text: str) -> tuple[Principal, float]:
        token_id, digest = parse(text) or (None, "")
        if token_id is None:
            raise TokenRefused("unknown")
        with self._database.read() as session:
            stored = TokenRepository(session).find(token_id)
        if stored is None or not same(stored.token.digest, digest):
            raise TokenRefused("unknown")
        seconds = seconds_left(stored)
        self._note_use(stored.token.last_used_at, stored.now, token_id=token_id)
        return principal_of(stored.token), seconds


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


class SessionChecker(Checker):
    """Finds the principal of a session. Those that were made with another token of the settings have ended."""

    def _load(self, text: str) -> tuple[Principal, float]:
        cookie = SessionCookie.parse(text)
        if cookie is None:
            raise TokenRefused("unknown")
        with self._database.read() as session:
            stored = SessionRepository(session).find(cookie.session_id)
        if stored is None or not same(stored.session.digest, cookie.digest):
            raise TokenRefused("unknown")
        seconds = session_seconds_left(stored)
        row = stored.session
        if stored.token is not None:
            principal = principal_of(stored.token)
        else:
            present = "" if self._configured is None else cookie.digest_of_configured(self._configured)
            if not same(row.configured_digest or "", present) or not present:
                raise SessionEnded
            principal = everything(CONFIGURED)
        self._note_use(row.last_used_at, stored.now, session_id=row.id, token_id=row.token_id)
        return replace(principal, session_id=row.id, chosen_project=row.project), seconds


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
            with database.within(None).read() as session:
                stored = SessionRepository(session).find_all(sessions)
            for session_id in sessions:
                try:
                    if session_id not in stored:  # with its token, when the run or ladder was deleted that it was for
                        raise SessionEnded
                    session_seconds_left(stored[session_id])
                except Unauthenticated as refusal:
                    refusals[session_id] = refusal
        return refusals

    return TokenWatcher(refused, seconds)


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

    def check(self, checker: Checker, text: str, address: str) -> Principal:
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
