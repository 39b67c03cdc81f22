"""The job that wakes workers for runs that wait.

It does not share the thread of leases, because a broker may hang: late rounds would look like gaps in reading the
database, and no lease would ever be taken (`server.controller.controller.ReadWindow`).
"""

import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from server.kit.db.database import Database
from server.kit.jobs import Job
from server.kit.settings import Settings
from server.kit.wake_up import WakeUp
from server.runs.scheduling.demand import Demand, Offer, Slot, leaves, occupy, others_than
from server.runs.scheduling.order import InTraining, quota_reached
from server.runs.scheduling.repository import OldestRun, WaitingRuns
from server.workers.repository import WorkerRepository

AT_ONCE = 16
"""Slots that are woken and have not claimed yet, at most: claims happen one after the other, and hundreds of slots that
try at once, when a zone has died, would only take processors and connections from them."""
PACE_SECONDS = 0.25
"""Time until it looks whether they have, while more runs are due."""
_log = structlog.get_logger(__name__)


@dataclass
class OnTheirWay:
    """Slots that were woken for runs with one demand, and have not claimed yet."""

    count: int = 0
    since: float = 0.0
    """When the last one was woken, or has claimed."""


class WakeUpNotifier:
    """Wakes workers for runs that wait: at once if they lost their worker, and again if none has taken them."""

    def __init__(
        self, database: Database, wake_up: WakeUp, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._wake_up = wake_up
        self._settings = settings.controller
        self._policy = settings.scheduling
        self._lease_seconds = settings.worker.lease_seconds
        self._monotonic = monotonic
        self._given = deque[str]()
        self.called = threading.Event()
        """Set when a run was given: the next round begins at once."""
        self._late: dict[str, str] = {}
        """Runs that a message should have found a slot for, and their demands."""
        self._since: dict[str, float] = {}
        """Since when runs wait."""
        self._reserved: dict[str, float] = {}
        """Runs for which a slot was woken that leaves them to another one, and when."""
        self._on_their_way = defaultdict[str, OnTheirWay](OnTheirWay)
        """By demand."""

    def wake(self, run_id: str) -> None:
        """Wake a slot for a run that has lost its worker. Waits for nothing; safe to call from any thread."""
        self._given.append(run_id)
        self.called.set()

    def job(self) -> Job:
        """Return the job. Where the broker does not answer, it is asked again at the pace of the loop."""
        return Job("wake_ups", self.tick, again_seconds=PACE_SECONDS, longest_pause_seconds=0.0)

    def tick(self) -> int:
        """Send a message for each run that was given, or has waited longer than a message should take; return how many
        runs remain that slots are to be woken for soon, once others have claimed.

        Each of them wakes one idle slot that may take it now, and no slot is woken for two: a run that no slot serves,
        or that a quota holds back, costs an idle fleet nothing. Not while messages for all slots are pending: each of
        them wakes a slot that takes the best run, so more would only pile up. For the same reason slots are counted
        that are on their way to a claim, and not the runs that were named to them. A slot that leaves a run to another
        one is woken for it twice: its first claim begins the time for which it does, and the second one ends it.
        """
        called_for = [self._given.popleft() for _ in range(len(self._given))]
        waiting, slots = self._read()
        now, wake_seconds = self._monotonic(), self._settings.wake_seconds
        self._since = {run.run_id: self._since.get(run.run_id, now - run.waited) for run in waiting}
        self._reserved = {run_id: since for run_id, since in self._reserved.items() if run_id in self._since}
        for run_id, demand in self._late.items():
            if run_id not in self._since:  # it was claimed; or it has ended, or no idle slot is left for it
                way = self._on_their_way[demand]
                way.count, way.since = max(0, way.count - 1), now
        expected = {*self._late, *called_for}
        late = [run for run in waiting if run.run_id in expected or now - self._since[run.run_id] >= wake_seconds]
        self._late = {run.run_id: run.demand for run in late}
        for demand, way in list(self._on_their_way.items()):
            if now - way.since >= wake_seconds or demand not in self._late.values():
                del self._on_their_way[demand]  # they come no more
        if not late or self._wake_up.pending() > 0:
            return 0
        covered = Counter({demand: way.count for demand, way in self._on_their_way.items()})
        room, due = AT_ONCE - covered.total(), []
        for run in late:
            if covered[run.demand] > 0:
                covered[run.demand] -= 1
            else:
                due.append(run)
        woken = self._assign(due, slots, now)[: max(0, room)]
        for run, offer, is_left in woken:
            way = self._on_their_way[run.demand]
            way.count, way.since = way.count + 1, now
            if is_left:
                self._reserved.setdefault(run.run_id, now)
            self._wake_up.wake(run.run_id, offer.kind)
        if woken:
            _log.info("slots_woken", runs=len(woken))
        return max(0, len(due) - len(woken)) if self._on_their_way else 0

    def _read(self) -> tuple[Sequence[OldestRun], Mapping[Slot, int]]:
        """Return the waiting runs that idle slots may take now, as many as there are such slots; and all live slots."""
        with self._database.read() as session:
            runs = WaitingRuns(session)
            groups = runs.demands()
            slots = WorkerRepository(session).slots(self._lease_seconds) if groups else {}
            idle = {slot: count for slot, count in slots.items() if _takes_runs(slot)}
            running = runs.running() if idle else InTraining({})
            takeable = [
                (account, demand)
                for account, demand in groups
                if any(slot.offer.serves(Demand.parse(demand)) for slot in idle)
                and quota_reached(account, running, self._policy) is None
            ]
            return runs.oldest(takeable, limit=sum(idle.values())) if takeable else (), slots

    def _assign(
        self, due: Iterable[OldestRun], slots: Mapping[Slot, int], now: float
    ) -> list[tuple[OldestRun, Offer, bool]]:
        """Give runs to idle slots, one each: to the smallest that serves it, which larger ones would leave it to.
        Return with each pair whether the slot leaves the run to another one, for a while.

        Slots of a kind with messages that none of them has taken are passed over: they do not listen. A run that its
        slot leaves to another one, and was woken for, gets none until that time is over.
        """
        present = Counter(slots)
        listening = [slot for slot in slots if _takes_runs(slot) and not self._wake_up.pending(slot.offer.kind)]
        smallest = sorted(listening, key=lambda slot: (slot.offer.gpus, len(slot.offer.labels)))
        assigned = []
        for run in due:
            demand = Demand.parse(run.demand)
            slot = next((slot for slot in smallest if present[slot] and slot.offer.serves(demand)), None)
            if slot is None:
                continue
            is_left = leaves(demand, slot.offer, others_than(slot, present))
            if not is_left:
                self._reserved.pop(run.run_id, None)
            elif now - self._reserved.get(run.run_id, -math.inf) < self._policy.best_fit_seconds:
                continue
            occupy(present, slot)
            assigned.append((run, slot.offer, is_left))
        return assigned


def _takes_runs(slot: Slot) -> bool:
    return slot.idle and not slot.offer.cordoned
