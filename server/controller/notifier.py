"""A thread of the controller that wakes workers for runs that wait.

It is not part of the controller's round, because a broker may hang: late rounds would look like gaps in reading the
database, and no lease would ever be taken (`server.controller.controller.ReadWindow`).
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import cycle, islice

import structlog

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.kit.settings import Settings
from server.kit.wake_up import WakeUp
from server.runs.scheduling.demand import Demand
from server.runs.scheduling.fit import Slot
from server.runs.scheduling.order import InTraining, quota_reached
from server.runs.scheduling.repository import OldestRun, WaitingRuns
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

        Each run that is due wakes one idle slot that may take it now, and no slot is woken for two: a run that no slot
        serves, or that a quota holds back, costs an idle fleet nothing. Not while earlier messages are pending: each of
        them wakes a slot that takes the best run, so more would only pile up.
        """
        with self._database.read() as session:
            runs = WaitingRuns(session)
            groups = runs.demands()
            slots = WorkerRepository(session).slots(self._lease_seconds) if groups else {}
            idle = {slot: count for slot, count in slots.items() if slot.idle and not slot.offer.cordoned}
            running = runs.running() if idle else InTraining({})
            takeable = [
                (account, demand)
                for account, demand in groups
                if any(slot.offer.serves(Demand.parse(demand)) for slot in idle)
                and quota_reached(account, running, self._policy) is None
            ]
            waiting = runs.oldest(takeable, limit=sum(idle.values())) if takeable else ()
        now = self._monotonic()
        self._woken = {one.run_id: self._woken.get(one.run_id, now - one.waited) for one in waiting}
        due = [one for one in waiting if now - self._woken[one.run_id] >= self._settings.wake_seconds]
        if not due or self._wake_up.pending() > 0:
            return
        woken, messages = self._assign(due, idle), 0
        for slot, its in woken.items():
            # A slot of a release before `0028` hears the messages for all slots alone, and any slot may take those: so
            # there is one for each idle slot, and this ends with the claim.
            count = len(its) if slot.hears else sum(idle.values())
            for one in islice(cycle(its), count):
                self._woken[one.run_id] = now
                self._wake_up.wake(one.run_id, slot.offer.kind if slot.hears else None)
            messages += count
        if messages:
            _log.info("wake_up_repeated", runs=sum(map(len, woken.values())), messages=messages)

    def _assign(self, due: Iterable[OldestRun], idle: Mapping[Slot, int]) -> Mapping[Slot, list[OldestRun]]:
        """Give runs to idle slots, one each: to the smallest that serves it, which larger ones would leave it to.

        Slots of a kind with messages that none of them has taken are passed over: they do not listen.
        """
        free = {
            slot: 0 if slot.hears and self._wake_up.pending(slot.offer.kind) else count for slot, count in idle.items()
        }
        smallest = sorted(free, key=lambda slot: (not slot.hears, slot.offer.gpus, len(slot.offer.labels)))
        assigned = defaultdict[Slot, list[OldestRun]](list)
        for one in due:
            demand = Demand.parse(one.demand)
            slot = next((slot for slot in smallest if free[slot] and slot.offer.serves(demand)), None)
            if slot is not None:
                free[slot] -= 1
                assigned[slot].append(one)
        return assigned
