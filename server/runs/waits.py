"""Long polls: requests that wait until a run is in a state.

A waiting request holds a thread and no database connection; the event tailer wakes it when the run has changed. The
thread pool is larger by `LIMIT`; a request beyond it is refused with 429.
"""

import threading
import time
from collections.abc import Collection

from ludus.schemas.states import RunState
from server.kit.http.errors import TooManyWaiters
from server.kit.http.telemetry import HttpTelemetry
from server.kit.states import TERMINAL
from server.kit.token_watcher import TokenWatcher
from server.runs.events.tailer import Tailer

LIMIT = 64
MAX_SECONDS = 60.0


class Waits:
    """Long polls of this process, at most `limit` at once."""

    def __init__(self, tailer: Tailer, watcher: TokenWatcher, telemetry: HttpTelemetry, limit: int = LIMIT) -> None:
        self._tailer = tailer
        self._watcher = watcher
        self._telemetry = telemetry
        self.limit = limit
        self._slots = threading.BoundedSemaphore(limit)

    def until(self, run_id: str, states: Collection[RunState], seconds: float, credential_id: str | None) -> None:
        """Block until the run is in one of `states`, or has ended, or the time is over.

        Raises TooManyWaiters, and TokenRefused when the request's token is not valid any more.
        """
        if not self._slots.acquire(blocking=False):
            raise TooManyWaiters(self.limit)
        self._telemetry.waiters.inc()
        try:
            self._wait(run_id, frozenset(states) | TERMINAL, seconds, credential_id)
        finally:
            self._telemetry.waiters.dec()
            self._slots.release()

    def _wait(self, run_id: str, states: Collection[RunState], seconds: float, credential_id: str | None) -> None:
        woken = threading.Event()
        deadline = time.monotonic() + seconds
        with self._watcher.watch(credential_id, woken.set) as watched, self._tailer.watch(run_id, woken.set) as feed:
            while not self._tailer.closed and (remaining := deadline - time.monotonic()) > 0:
                if watched.refusal is not None:
                    raise watched.refusal
                if feed.head is not None and feed.head.state in states:
                    return
                woken.wait(remaining)
                woken.clear()


def states_of(text: str) -> frozenset[RunState]:
    """Read `RUNNING,PAUSED` or `terminal`."""
    names = text.split(",")
    return frozenset(RunState(name) for name in names if name != "terminal") | (
        TERMINAL if "terminal" in names else frozenset()
    )
