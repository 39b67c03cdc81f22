"""Ends what is open for long once its token holds no longer: event streams, waits, downloads, relayed simulators.

`server.access.tokens.checker` decides when something is opened; here it is decided how long it may stay. One thread
looks at all tokens with which anything is open, with one query every few seconds, however much is open. While the
database does not answer, nobody is thrown out.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from server.access.tokens.checker import seconds_left
from server.access.tokens.repository import TokenRepository
from server.kit.db.database import Database
from server.kit.errors import LudusError, TokenRefused

LOOK_SECONDS: Final = 5.0
"""How long a token that was revoked elsewhere, or has expired, may go unnoticed."""
REFUSED: Final = 4096
"""Refused tokens in memory, with which nothing is opened again; beyond that it begins anew."""

_log = structlog.get_logger(__name__)


class Stay:
    """One thing that is open on the strength of a token."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.refusal: TokenRefused | None = None
        """Why it has to end; None while the token holds."""
        self._wake = wake

    def end(self, refusal: TokenRefused) -> None:
        """Let its owner know that it has to end."""
        self.refusal = TokenRefused(refusal.reason)  # an exception of its own: it will be raised
        self._wake()


class TokenVigil:
    """Knows what is open with which token. Safe to share between threads."""

    def __init__(self, database: Database, seconds: float | None = None) -> None:
        """`seconds` lie between two looks, by default `LOOK_SECONDS`."""
        self._database = database.within(None)
        self._seconds = LOOK_SECONDS if seconds is None else seconds
        self._changed = threading.Condition()
        self._stays: dict[str, set[Stay]] = {}
        """By the token's id."""
        self._refused: dict[str, TokenRefused] = {}
        """A token that held no longer never holds again."""
        self._thread: threading.Thread | None = None
        self._hurried = self._closed = False

    @contextmanager
    def watch(self, token_id: str | None, wake: Callable[[], None]) -> Iterator[Stay]:
        """Keep a vigil over a token while something is open with it; None: no token of the database, which stays.

        `wake` is called at most once, from any thread, when it has to end; it must not block.
        """
        stay = Stay(wake)
        if token_id is None:
            yield stay
            return
        self._enter(token_id, stay)
        try:
            yield stay
        finally:
            self._leave(token_id, stay)

    @property
    def open(self) -> int:
        """How much is open with tokens of the database."""
        with self._changed:
            return sum(len(stays) for stays in self._stays.values())

    def hurry(self) -> None:
        """Look now: this process has just revoked a token."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread. What is open stays so."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _enter(self, token_id: str, stay: Stay) -> None:
        with self._changed:
            refusal = self._refused.get(token_id)
            if refusal is None:
                self._stays.setdefault(token_id, set()).add(stay)
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="token-vigil", daemon=True)
                    self._thread.start()
                if len(self._stays) == 1:
                    self._changed.notify_all()
        if refusal is not None:
            stay.end(refusal)

    def _leave(self, token_id: str, stay: Stay) -> None:
        with self._changed:
            stays = self._stays.get(token_id, set())
            stays.discard(stay)
            if not stays:
                self._stays.pop(token_id, None)

    def _run(self) -> None:
        try:
            while self._rest():
                try:
                    self._look()
                except LudusError as error:
                    _log.warning("token_look_failed", code=error.code, detail=error.message)
        finally:
            with self._changed:
                self._thread = None

    def _rest(self) -> bool:
        """Wait until something is open, and then a while: most requests are answered by then, and cost no query.

        False when the vigil is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._stays)
            self._changed.wait_for(lambda: self._closed or self._hurried, self._seconds)
            self._hurried = False
            return not self._closed

    def _look(self) -> None:
        with self._changed:
            token_ids = list(self._stays)
        if not token_ids:
            return
        with self._database.read() as session:
            found = TokenRepository(session).find_all(token_ids)
        for token_id in token_ids:
            try:
                seconds_left(found.get(token_id))
            except TokenRefused as refusal:
                self._end(token_id, refusal)

    def _end(self, token_id: str, refusal: TokenRefused) -> None:
        with self._changed:
            if len(self._refused) >= REFUSED:
                self._refused.clear()
            self._refused[token_id] = refusal
            stays = self._stays.pop(token_id, set())
        _log.info("token_holds_no_longer", token_id=token_id, reason=refusal.reason, open=len(stays))
        for stay in stays:
            stay.end(refusal)
