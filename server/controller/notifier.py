"""A thread of the controller that wakes workers for runs that wait.

It is not part of the controller's round, because a broker may hang: late rounds would look like gaps in reading the
database, and no lease would ever be taken (`server.controller.controller.ReadWindow`).
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import cycle, islice

import structlog

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.kit.settings import Settings
from server.kit.wake_up import WakeUp
from server.runs.scheduling.demand import Demand
from server.runs.scheduling.order import InTraining, quota_reached
from server.runs.scheduling.repository import WaitingRuns
from server.workers.repository import WorkerRepository

_log = structlog.get_logger(__name__)


class WakeUpNotifier:
    """Wakes workers at once for runs that it is given, and again for those that no worker has taken since."""

    def __init__(
        self, database: Database, wake_up: WakeUp, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._wake_up = wake_up
        self._settings = settings.controller
        self._policy = settings.scheduling
        self._lease_seconds = settings.worker.lease_seconds
        self._monotonic = monotonic
        self._wanted: deque[str] = deque()
        self._given = threading.Event()
        self._woken: dict[str, float] = {}

    def wake(self, run_id: str) -> None:
        """Wake the workers for a run. Does not wait for the broker; safe to call from any thread."""
        self._wanted.append(run_id)
        self._given.set()

    def run(self, stop: threading.Event) -> None:
        """Wake workers until `stop` is set."""
        while not stop.is_set():
            self.tick()
            self._given.wait(self._settings.interval_seconds)
            self._given.clear()

    def tick(self) -> None:
        """Wake workers for given and waiting runs. While the database or the broker does not answer, do nothing."""
        try:
            while self._wanted:
                self._wake_up.wake(self._wanted.popleft())
            self._repeat()
        except Unavailable as error:
            _log.warning("wake_up_failed", code=error.code, error=str(error))

    def _repeat(self) -> None:
        """Send the message again for runs that have waited longer than a message should take.

        Only for runs that an idle slot may take now: a run that no slot serves, or that a quota holds back, costs an
        idle fleet nothing. And not while earlier messages are pending: each of them wakes a worker that takes the best
        run, so more would only pile up.
        """
        with self._database.read() as session:
            runs = WaitingRuns(session)
            groups = runs.demands()
            idle = Counter(WorkerRepository(session).offers(self._lease_seconds, idle=True)) if groups else Counter()
            running = runs.running() if idle else InTraining({})
            takeable = [
                (account, demand)
                for account, demand in groups
                if any(offer.serves(Demand.parse(demand)) for offer in idle)
                and quota_reached(account, running, self._policy) is None
            ]
            waiting = runs.oldest(takeable, limit=idle.total()) if takeable else ()
        now = self._monotonic()
        self._woken = {one.run_id: self._woken.get(one.run_id, now - one.waited) for one in waiting}
        due = [one for one in waiting if now - self._woken[one.run_id] >= self._settings.wake_seconds]
        if not due or self._wake_up.pending() > 0:
            return
        # Any idle slot may hear a message. Where slots differ, one that serves none of these runs, or leaves them to a
        # better one, hears it in vain: so each gets a message, and this ends with the claim.
        messages = idle.total() if len(idle) > 1 else min(len(due), idle.total())
        for one in due:
            self._woken[one.run_id] = now
        for one in islice(cycle(due), messages):
            self._wake_up.wake(one.run_id)
        _log.info("wake_up_repeated", runs=len(due), messages=messages)
