"""Checks the `Authorization` of requests to the HTTP API and the gateway.

An answer is remembered for a few seconds, so that a request costs no query; a revoked token therefore stays valid for
as long in processes that have just seen it. Refusals are not remembered. Memory has the SHA-256 of texts, never texts.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from ludus.schemas.tokens import Scope
from server.access.tokens.repository import USE_SECONDS, Known, TokenRepository
from server.access.tokens.secrets import parse, same
from server.kit.db.database import Database
from server.kit.errors import TokenRefused, Unavailable
from server.kit.principal import CONFIGURED, Principal, everything, including
from server.kit.token_watcher import TokenWatcher

REMEMBERED_SECONDS: Final = 5.0
"""Time for which a revoked token may still be accepted."""
REMEMBERED: Final = 4096
"""Tokens in memory; the memory is emptied when it is full."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Memory:
    principal: Principal
    until: float
    """On the monotonic clock."""


class TokenChecker:
    """Finds the principal of a token. Safe to share between threads.

    `configured` is the token of the settings, which may do everything.
    """

    def __init__(
        self, database: Database, configured: str | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database.within(None)
        self._configured = None if configured is None else _fingerprint(configured)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._memory: dict[bytes, _Memory] = {}

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a token if that is known without a query. Takes microseconds."""
        fingerprint = _fingerprint(text)
        if self._configured is not None and same(fingerprint.hex(), self._configured.hex()):
            return everything(CONFIGURED)
        memory = self._memory.get(fingerprint)
        return memory.principal if memory is not None and self._monotonic() < memory.until else None

    def check(self, text: str) -> Principal:
        """Return the principal of a token. Raises TokenRefused, DatabaseUnavailable."""
        known = self.recall(text)
        if known is not None:
            return known
        parsed = parse(text)
        if parsed is None:
            raise TokenRefused("unknown")
        token_id, digest = parsed
        with self._database.read() as session:
            found = TokenRepository(session).find(token_id)
        if found is None or not same(found.token.digest, digest):
            raise TokenRefused("unknown")
        seconds = seconds_left(found)
        principal = _principal(found)
        self._remember(text, principal, min(seconds, REMEMBERED_SECONDS))
        if found.token.last_used_at is None or found.now - found.token.last_used_at >= USE_SECONDS:
            self._note_use(token_id)
        return principal

    def forget(self) -> None:
        """Empty the memory: this process has revoked a token."""
        with self._lock:
            self._memory.clear()

    def _remember(self, text: str, principal: Principal, seconds: float) -> None:
        with self._lock:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            self._memory[_fingerprint(text)] = _Memory(principal, self._monotonic() + seconds)

    def _note_use(self, token_id: str) -> None:
        try:
            with self._database.write() as session:
                TokenRepository(session).note_use(token_id)
        except Unavailable as error:  # only information for people: it must not refuse a request
            _log.warning("token_use_not_noted", token_id=token_id, error=str(error))


def watch_tokens(database: Database, seconds: float | None = None) -> TokenWatcher:
    """Return a watcher of the tokens in the database; see `TokenWatcher` for `seconds`."""
    database = database.within(None)

    def refused(token_ids: Collection[str]) -> Mapping[str, TokenRefused]:
        with database.read() as session:
            found = TokenRepository(session).find_all(token_ids)
        refusals = {}
        for token_id in token_ids:
            try:
                seconds_left(found.get(token_id))
            except TokenRefused as refusal:
                refusals[token_id] = refusal
        return refusals

    return TokenWatcher(refused, seconds)


def seconds_left(found: Known | None) -> float:
    """Return the seconds for which a token is valid, maybe infinite. Raises TokenRefused if it is not."""
    if found is None:
        raise TokenRefused("unknown")
    token = found.token
    if token.revoked_at is not None:
        raise TokenRefused("revoked")
    if token.expires_at is None:
        return math.inf
    if token.expires_at <= found.now:
        raise TokenRefused("expired")
    return token.expires_at - found.now


def _principal(found: Known) -> Principal:
    token = found.token
    scopes = including(Scope(each) for each in token.scopes)
    return Principal(token.name, scopes, token.project, token.id, token.run_id)


def _fingerprint(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
