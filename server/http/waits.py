"""Long polls: requests that wait until a run is in a state.

A waiting request holds a thread and no database connection; the event tailer tells it when to look. So many may wait at
once, and the thread pool is larger by that number; one more is told to come back (429).
"""

import threading
from collections.abc import Collection

from server.http.errors import TooManyWaiters
from server.http.tailer import Tailer
from server.http.telemetry import HttpTelemetry
from server.runs.states import TERMINAL, RunState

LIMIT = 64
MAX_SECONDS = 60.0


class Waits:
    """Lets requests wait, up to a limit."""

    def __init__(self, tailer: Tailer, telemetry: HttpTelemetry, limit: int = LIMIT) -> None:
        self._tailer = tailer
        self._telemetry = telemetry
        self.limit = limit
        self._places = threading.BoundedSemaphore(limit)

    def until(self, run_id: str, states: Collection[RunState], seconds: float) -> None:
        """Block until the run is in one of `states`, or has ended, or the time is over. Raises TooManyWaiters."""
        if not self._places.acquire(blocking=False):
            raise TooManyWaiters(self.limit)
        self._telemetry.waiters.inc()
        try:
            self._tailer.wait_for_state(run_id, frozenset(states) | TERMINAL, seconds)
        finally:
            self._telemetry.waiters.dec()
            self._places.release()


def states_of(text: str) -> frozenset[RunState]:
    """Read `RUNNING,PAUSED` or `terminal`."""
    names = text.split(",")
    return frozenset(RunState(name) for name in names if name != "terminal") | (
        TERMINAL if "terminal" in names else frozenset()
    )
