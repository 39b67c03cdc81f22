"""Long polls: requests that wait until a run is in a state.

A waiting request holds a thread and no database connection; the event tailer tells it when to look. So many may wait at
once, and the thread pool is larger by that number; one more is told to come back (429).
"""

import threading
import time
from collections.abc import Collection

from server.access.tokens.vigil import TokenVigil
from server.app.tailer import Tailer
from server.app.telemetry import HttpTelemetry
from server.kit.http.errors import TooManyWaiters
from server.runs.states import TERMINAL, RunState

LIMIT = 64
MAX_SECONDS = 60.0


class Waits:
    """Lets requests wait, up to a limit."""

    def __init__(self, tailer: Tailer, vigil: TokenVigil, telemetry: HttpTelemetry, limit: int = LIMIT) -> None:
        self._tailer = tailer
        self._vigil = vigil
        self._telemetry = telemetry
        self.limit = limit
        self._places = threading.BoundedSemaphore(limit)

    def until(self, run_id: str, states: Collection[RunState], seconds: float, token_id: str | None) -> None:
        """Block until the run is in one of `states`, or has ended, or the time is over.

        Raises TooManyWaiters, and TokenRefused when the token with which somebody waits holds no longer.
        """
        if not self._places.acquire(blocking=False):
            raise TooManyWaiters(self.limit)
        self._telemetry.waiters.inc()
        try:
            self._wait(run_id, frozenset(states) | TERMINAL, seconds, token_id)
        finally:
            self._telemetry.waiters.dec()
            self._places.release()

    def _wait(self, run_id: str, states: Collection[RunState], seconds: float, token_id: str | None) -> None:
        woken = threading.Event()
        deadline = time.monotonic() + seconds
        with self._vigil.watch(token_id, woken.set) as stay, self._tailer.watch(run_id, woken.set) as feed:
            while not self._tailer.closed and (left := deadline - time.monotonic()) > 0:
                if stay.refusal is not None:
                    raise stay.refusal
                if feed.head is not None and feed.head.state in states:
                    return
                woken.wait(left)
                woken.clear()


def states_of(text: str) -> frozenset[RunState]:
    """Read `RUNNING,PAUSED` or `terminal`."""
    names = text.split(",")
    return frozenset(RunState(name) for name in names if name != "terminal") | (
        TERMINAL if "terminal" in names else frozenset()
    )
