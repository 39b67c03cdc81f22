"""The ringer: a thread of the steward that wakes workers for runs that wait.

Apart from the steward's round, because a broker that hangs takes its time: rounds that come late would look like gaps
in reading the database, and no lease would ever be taken (`server.controller.controller.Watch`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from typing import Protocol

import structlog

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.kit.settings import Settings
from server.runs.leases.repository import LeaseRepository
from server.workers.repository import WorkerRepository

_log = structlog.get_logger(__name__)


class Bell(Protocol):
    """Wakes workers, and knows how many rings no worker has heard yet."""

    def ring(self, run_id: str) -> None:
        """Tell the workers that a run waits."""
        ...

    def pending(self) -> int:
        """Return how many rings wait for a worker. Raises BrokerUnavailable."""
        ...


class Ringer:
    """Rings at once for runs that it is told of, and again for those that nobody has taken since."""

    def __init__(
        self, database: Database, bell: Bell, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._bell = bell
        self._settings = settings.steward
        self._lease_seconds = settings.worker.lease_seconds
        self._monotonic = monotonic
        self._wanted: deque[str] = deque()
        self._wake = threading.Event()
        self._rung: dict[str, float] = {}

    def ring(self, run_id: str) -> None:
        """Have the workers told that a run waits. Does not wait for the broker; safe to use from any thread."""
        self._wanted.append(run_id)
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Ring until `stop` is set."""
        while not stop.is_set():
            self.tick()
            self._wake.wait(self._settings.interval_seconds)
            self._wake.clear()

    def tick(self) -> None:
        """Ring for what is wanted and what waits. A database or a broker that doesn't answer is waited for."""
        try:
            while self._wanted:
                self._bell.ring(self._wanted.popleft())
            self._ring_again()
        except Unavailable as error:
            _log.warning("ringing_failed", code=error.code, error=str(error))

    def _ring_again(self) -> None:
        """Ring for runs that have waited since the last ring for longer than a ring should take.

        Not while earlier rings wait: each of them wakes a worker that takes whatever run is best, so more would only
        pile up while all workers are busy. And once for each idle slot at least: the first one that wakes up may have
        nothing of what the run wants.
        """
        with self._database.read() as session:
            waiting = LeaseRepository(session).waiting()
            idle = WorkerRepository(session).idle(self._lease_seconds) if waiting else 0
        now = self._monotonic()
        self._rung = {run_id: self._rung.get(run_id, now) for run_id in waiting}
        due = [run_id for run_id, rung in self._rung.items() if now - rung >= self._settings.ring_seconds]
        if not due or self._bell.pending() > 0:
            return
        for run_id in due:
            self._rung[run_id] = now
        for run_id in islice(cycle(due), max(len(due), idle)):
            self._bell.ring(run_id)
        _log.info("doorbell_rung_again", runs=len(due))
