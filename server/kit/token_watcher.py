"""Close streams, long polls, downloads and relayed calls when their token is revoked or expires, or their session ends.

The check of a token when something is opened is `server.access.checker`; this module limits how long it stays
open. One thread looks up all tokens and sessions with something open, with one query of each every few seconds, however
much is open. While the database does not answer, everything stays open.
"""

import asyncio
import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from server.kit.errors import LudusError, Unauthenticated


def on_loop(act: Callable[[], object]) -> Callable[[], None]:
    """Return a function for any thread that schedules `act` on the running loop, unless the loop has ended."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended, and its tasks with it
            loop.call_soon_threadsafe(act)

    return wake


LOOK_SECONDS: Final = 5.0
"""Longest time until a token that another process revoked, or that expired, is noticed."""
LAST_SECONDS: Final = 5.0
"""Longest wait for the last look."""
REFUSED: Final = 4096
"""Refused tokens kept in memory, with which nothing is opened again; the set is emptied when it is full."""

_log = structlog.get_logger(__name__)


class WatchedRequest:
    """One open request, valid as long as its token or session."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.refusal: Unauthenticated | None = None
        """Why the request has to end; None while the token is valid."""
        self._wake = wake

    def end(self, refusal: Unauthenticated) -> None:
        """Tell the owner that the request has to end."""
        self.refusal = copy.copy(refusal)  # an own exception object: the owner raises it
        self._wake()


class TokenWatcher:
    """Knows which requests are open with which token or session. Safe to share between threads."""

    def __init__(
        self, refused: Callable[[Collection[str]], Mapping[str, Unauthenticated]], seconds: float | None = None
    ) -> None:
        """`refused` returns those of some ids of tokens and sessions that are not valid any more; it is called every
        `seconds` (default `LOOK_SECONDS`), from the watcher's thread.
        """
        self._look_up = refused
        self._seconds = LOOK_SECONDS if seconds is None else seconds
        self._changed = threading.Condition()
        self._watched: dict[str, set[WatchedRequest]] = {}
        """By the id of the token or session."""
        self._refused: dict[str, Unauthenticated] = {}
        """A token or session that was refused once is never valid again."""
        self._thread: threading.Thread | None = None
        self._hurried = self._closed = False

    @contextmanager
    def watch(self, credential_id: str | None, wake: Callable[[], None]) -> Iterator[WatchedRequest]:
        """Watch a token or session while something is open with it; None: neither is in the database, always valid.

        `wake` is called at most once, from any thread, when the request has to end; it must not block.
        """
        request = WatchedRequest(wake)
        if credential_id is None:
            yield request
            return
        self._enter(credential_id, request)
        try:
            yield request
        finally:
            with self._changed:
                requests = self._watched.get(credential_id, set())
                requests.discard(request)
                if not requests:
                    self._watched.pop(credential_id, None)

    @property
    def open(self) -> int:
        """Number of requests that are open with tokens of the database."""
        with self._changed:
            return sum(len(requests) for requests in self._watched.values())

    def hurry(self) -> None:
        """Look now: this process has just revoked a token, or ended a session."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, and wait for its last look, which may have a connection. Requests stay open."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(LAST_SECONDS)

    def _enter(self, credential_id: str, request: WatchedRequest) -> None:
        with self._changed:
            refusal = self._refused.get(credential_id)
            if refusal is None:
                self._watched.setdefault(credential_id, set()).add(request)
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="token-watcher", daemon=True)
                    self._thread.start()
                if len(self._watched) == 1:
                    self._changed.notify_all()
        if refusal is not None:
            request.end(refusal)

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
        """Wait until something is open, and then for the interval: most requests are answered by then, without a query.

        Return False when the watcher is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._watched)
            self._changed.wait_for(lambda: self._closed or self._hurried, self._seconds)
            self._hurried = False
            return not self._closed

    def _look(self) -> None:
        with self._changed:
            ids = list(self._watched)
        if not ids:
            return
        for credential_id, refusal in self._look_up(ids).items():
            with self._changed:
                if len(self._refused) >= REFUSED:
                    self._refused.clear()
                self._refused[credential_id] = refusal
                requests = list(self._watched.get(credential_id, ()))
            for request in requests:
                request.end(refusal)
            with self._changed:
                self._watched.pop(credential_id, None)  # only now: what is not open any more has been refused
            _log.info(
                "token_refused_while_open",
                id=credential_id,
                code=refusal.code,
                detail=refusal.message,
                open=len(requests),
            )
