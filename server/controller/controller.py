"""The steward: takes runs from workers that are gone, wakes workers for runs that wait, says which of those wait in
vain, and forgets what is old.

Any number of stewards may run: every act is decided again in the database, under the run's lock.

The steward itself could be what is late: after an outage of the database, a pause of its host or its own start, every
lease looks expired although every worker lives. So it takes runs away only after it has itself read the database,
without a gap, for one full lease, on the database's clock: in that time every living worker could have renewed.

Threads of their own wake workers (`server.controller.notifier`), rate matches (`server.ladders.ratings.rater`), clean
the artifact store (`server.checkpoints.retention.janitor`) and tell webhooks (`server.webhooks.deliveries.sender`): all
may take long and must not hold up the rest. One more ends processes that froze while they had SQLite's write lock
(`server.kit.db.frozen`), for which the rest would wait in vain.
"""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

import structlog

from server.access.audit.repository import AuditRepository
from server.app.repository import IdempotencyRepository
from server.checkpoints.retention.janitor import Janitor
from server.controller.notifier import Ringer
from server.kit.artifacts.opening import open_store
from server.kit.db.database import Database
from server.kit.db.frozen import Thaw
from server.kit.errors import Unavailable
from server.kit.queue import Doorbell, make_celery
from server.kit.settings import Settings
from server.kit.telemetry import StewardTelemetry, serve_metrics
from server.ladders.ratings.rater import Rater
from server.metrics.repository import MetricRepository
from server.runs.events.repository import lock_run
from server.runs.leases.repository import ExpiredLease, LeaseRepository
from server.runs.scheduling.repository import WaitingRuns
from server.runs.scheduling.turn import Account, Obstacle, obstacle
from server.runs.states import RunState
from server.webhooks.deliveries.sender import Sender
from server.workers.repository import WorkerRepository

EXTREMES = 50
"""Metrics whose extremes are computed in one round."""
EXPLAIN_SECONDS = 5.0
"""Pause between two looks at what waiting runs want."""
RETENTION_SECONDS = 60.0
"""Pause between two rounds of forgetting."""
LAST_SECONDS = 5.0
"""What the artifact store and the broker get to answer when the steward stops."""
_log = structlog.get_logger(__name__)


class Bell(Protocol):
    """Wakes workers."""

    def ring(self, run_id: str) -> None:
        """Tell the workers that a run waits."""
        ...


class Chore(Protocol):
    """Something that a thread of the steward does all the time."""

    def run(self, stop: threading.Event) -> None:
        """Do it until `stop` is set."""
        ...


class Watch:
    """Knows for how long the database has been read without a gap, on the database's own clock."""

    def __init__(self, gap_seconds: float) -> None:
        self._gap = gap_seconds
        self._since: float | None = None
        self._last = 0.0

    def observe(self, now: float) -> float:
        """Note a reading; return for how many seconds there has been no gap (nor a clock that went backwards)."""
        if self._since is None or not 0 <= now - self._last <= self._gap:
            self._since = now
        self._last = now
        return now - self._since

    def lose(self) -> None:
        """Note that the database could not be read."""
        self._since = None


class Steward:
    """One round of care per `tick`. Keeps nothing that another steward, or its own successor, would miss."""

    def __init__(
        self,
        database: Database,
        bell: Bell,
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
        telemetry: StewardTelemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or StewardTelemetry()
        self._database = database
        self._bell = bell
        self._settings = settings.steward
        self._policy = settings.scheduling
        self._lease_seconds = settings.worker.lease_seconds
        self._monotonic = monotonic
        self._watch = Watch(gap_seconds=settings.worker.lease_seconds / 2)
        self._explained = -EXPLAIN_SECONDS
        self._obstructed: dict[tuple[Account, str, str], float] = {}
        """Since when each account's runs with a demand have met an obstacle, by its event's type, at every look."""
        self._forgot = -RETENTION_SECONDS

    def tick(self) -> None:
        """Reap, explain, forget. A database that doesn't answer is waited for."""
        began, outcome = self._monotonic(), "ok"
        try:
            self._reap()
            self._explain()
            self._forget()
            self._renew_extremes()
        except Unavailable as error:
            outcome = error.code
            self._watch.lose()
            _log.warning("steward_round_failed", code=error.code, error=str(error))
        self._telemetry.round(outcome, self._monotonic() - began)

    def run(self, stop: threading.Event) -> None:
        """Take care until `stop` is set."""
        pause = min(self._settings.interval_seconds, self._lease_seconds / 4)  # longer ones would look like gaps
        _log.info("steward_started", lease_seconds=self._lease_seconds, restart_budget=self._settings.restart_budget)
        while not stop.is_set():
            self.tick()
            stop.wait(pause)
        _log.info("steward_stopped")

    def _reap(self) -> None:
        with self._database.read() as session:
            leases = LeaseRepository(session)
            watched = self._watch.observe(leases.clock())
            expired = leases.expired()
        if watched < self._lease_seconds:
            return
        for lease in expired:
            self._take(lease)

    def _take(self, lease: ExpiredLease) -> None:
        with self._database.write() as session:
            state = LeaseRepository(session).reap(lease, self._settings.restart_budget)
        if state is None:
            return
        self._telemetry.lease_expired()
        _log.warning("lease_expired", run_id=lease.run_id, epoch=lease.epoch, state=state)
        if state is RunState.RECOVERING:
            self._bell.ring(lease.run_id)

    def _explain(self) -> None:
        """Say of runs what they wait for beside their turn, and take it back once that is over.

        An obstacle counts once it was met at every look for `explain_seconds`: a worker that starts anew, or one that
        has just begun, is not there for a moment, and a run that a dead worker leaves behind has waited long already.
        """
        now = self._monotonic()
        if now - self._explained < EXPLAIN_SECONDS:
            return
        self._explained = now
        with self._database.read() as session:
            runs = WaitingRuns(session)
            offers = WorkerRepository(session).offers(self._lease_seconds)
            running = runs.running()
            groups = {(one.account, one.demand) for one in runs.heads()}
            found = {group: obstacle(*group, offers, running, self._policy) for group in groups}
            news: dict[str, Obstacle | None] = {
                run_id: None for run_id, account, demand in runs.informed() if found.get((account, demand)) is None
            }
            met = {(account, demand, why.event): why for (account, demand), why in found.items() if why is not None}
            self._obstructed = {key: self._obstructed.get(key, now) for key in met}
            for key, one in met.items():
                if now - self._obstructed[key] >= self._policy.explain_seconds:
                    ids = runs.uninformed(key[0], key[1], one, since_seconds=self._policy.explain_seconds)
                    news |= dict.fromkeys(ids, one)
        for run_id, why in news.items():
            self._inform(run_id, why)

    def _inform(self, run_id: str, why: Obstacle | None) -> None:
        """Note what a run waits for, unless that is over by now.

        The race: since the look, a worker has come that serves the run and is about to take it. Its claim locks the
        run's row, and so does this: either the run is claimed and stays as it is, or the worker is seen here.
        """
        with self._database.write() as session:
            runs = WaitingRuns(session)
            run = runs.lock(run_id)
            if run is None:
                return
            if why is not None:
                offers = WorkerRepository(session).offers(self._lease_seconds)
                why = obstacle(
                    Account(run.project, run.token_id, run.owner), run.demand, offers, runs.running(), self._policy
                )
            runs.inform(run_id, why)

    def _renew_extremes(self) -> None:
        """Compute the extremes of metrics that another release has written."""
        with self._database.read() as session:
            stale = MetricRepository(session).stale(EXTREMES)
        for run_id, behavior, key in stale:
            with self._database.write() as session:
                if lock_run(session, run_id, patient=False) is not None:
                    MetricRepository(session).renew_extremes(run_id, behavior, key)

    def _forget(self) -> None:
        now = self._monotonic()
        if now - self._forgot < RETENTION_SECONDS:
            return
        with self._database.write() as session:
            keys = IdempotencyRepository(session).forget(self._settings.idempotency_seconds)
            workers = WorkerRepository(session).forget(self._settings.worker_seconds)
            entries = AuditRepository(session).forget(self._settings.audit_days)
        self._forgot = now
        if keys or workers or entries:
            _log.info("old_rows_deleted", idempotency_keys=keys, workers=workers, audit_entries=entries)


def main(settings: Settings) -> None:
    """Run a steward until SIGTERM or SIGINT."""
    stop = threading.Event()

    def finish(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, finish)
    signal.signal(signal.SIGINT, finish)
    telemetry = StewardTelemetry()
    serve_metrics(telemetry.registry, settings.telemetry, settings.telemetry.steward_port)
    database = Database.from_settings(settings.database)
    ringer = Ringer(database, Doorbell(make_celery(settings)), settings)
    chores: dict[str, Chore] = {
        "ringer": ringer,
        "rater": Rater(database),
        "janitor": Janitor(database, open_store(settings.storage), settings.storage),
        "sender": Sender(database, settings.webhooks, telemetry),
    }
    if database.url.get_backend_name() == "sqlite":
        chores["thaw"] = Thaw(Path(database.url.database or ""), settings.worker.lease_seconds)
    threads = [
        threading.Thread(target=_until_it_fails, args=(chore, stop), name=name, daemon=name in {"janitor", "ringer"})
        for name, chore in chores.items()
    ]
    for thread in threads:
        thread.start()
    try:
        Steward(database, ringer, settings, telemetry=telemetry).run(stop)
    finally:
        stop.set()
        for thread in threads:  # two may wait for a store or a broker; whatever they are at, the next steward does it
            thread.join(LAST_SECONDS if thread.daemon else None)
        database.close()


def _until_it_fails(chore: Chore, stop: threading.Event) -> None:
    """Do a chore until `stop` is set. Should it fail, the steward ends, and is started again."""
    try:
        chore.run(stop)
    finally:
        stop.set()
