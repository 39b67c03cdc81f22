"""The controller: takes runs from lost workers, wakes workers for waiting runs, lends slots of runs without games, and
records why runs cannot start.

Any number of controllers may run: every action is decided again in the database, under the run's lock.

The controller itself may be late: after an outage of the database, a pause of its host or its own start, every lease
looks expired although every worker lives. So it takes runs away only after it has read the database without a gap for
one full lease, on the database's clock: in that time every living worker could have renewed its lease.

Background tasks with threads of their own wake workers (`server.controller.notifier`), rate matches
(`server.ladders.ratings.job`), clean the artifact store (`server.checkpoints.retention.job`), delete old rows
(`server.controller.old_rows`), pack metrics (`server.metrics.compaction.job`), archive them
(`server.metrics.retention.job`) and send webhooks (`server.webhooks.deliveries.sender`): each may take long and must
not delay the others. If one fails, the controller ends with it (`ludus.threads`), and is started again.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

import structlog

from ludus.schemas.states import RunState
from server.checkpoints.retention.job import RetentionJob
from server.controller.notifier import WakeUpNotifier
from server.controller.old_rows import old_row_job
from server.kit.artifacts.opening import open_store
from server.kit.db.database import Database
from server.kit.db.stopped_writer import StoppedWriterWatchdog
from server.kit.errors import Unavailable
from server.kit.probes import LoopHeartbeat, Probes
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import Settings
from server.kit.telemetry import ControllerTelemetry, serve_metrics
from server.kit.tracing import open_tracer
from server.kit.wake_up import WakeUp
from server.ladders.ratings.job import RatingJob
from server.lifecycle.leases.repository import ExpiredLease, LeaseRepository
from server.lifecycle.lending.repository import SlotLending
from server.metrics.compaction.job import CompactionJob
from server.metrics.repository import MetricRepository
from server.metrics.retention.job import MetricRetentionJob
from server.runs.events.repository import lock_run
from server.runs.scheduling.order import Account, Obstacle, obstacle
from server.runs.scheduling.repository import WaitingRuns
from server.simulators.repository import SimulatorRepository
from server.webhooks.deliveries.sender import Sender
from server.workers.repository import WorkerRepository

CONNECTIONS = 8
"""Connections with the database: one for the rounds and each background task, and some for messages that are sent."""
EXTREMES = 50
"""Metrics whose extremes are computed in one round."""
EXPLAIN_SECONDS = 5.0
"""Pause between two looks at the demands of waiting runs."""
HANGS_SECONDS = 300.0
"""A controller whose round has taken longer fails its liveness probe. Each statement has a time-out of its own."""
LAST_SECONDS = 5.0
"""Time for the artifact store and the broker to answer when the controller stops, for both together."""
_log = structlog.get_logger(__name__)


class BackgroundTask(Protocol):
    """Work that a thread of the controller does all the time."""

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        ...


class ReadWindow:
    """Measures for how long the database has been read without a gap, on the database's clock."""

    def __init__(self, gap_seconds: float) -> None:
        self._gap = gap_seconds
        self._since: float | None = None
        self._last = 0.0

    def observe(self, now: float) -> float:
        """Record a read; return the seconds without a gap, and without a clock that went backwards."""
        if self._since is None or not 0 <= now - self._last <= self._gap:
            self._since = now
        self._last = now
        return now - self._since

    def reset(self) -> None:
        """Record that the database could not be read."""
        self._since = None


class Controller:
    """Does one round of work per `tick`. Its state is only in the database, so another controller can replace it."""

    def __init__(
        self,
        database: Database,
        wake_up: WakeUp | WakeUpNotifier,
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
        telemetry: ControllerTelemetry | None = None,
        heartbeat: LoopHeartbeat | None = None,
    ) -> None:
        self._telemetry = telemetry or ControllerTelemetry()
        self._heartbeat = heartbeat or LoopHeartbeat(HANGS_SECONDS)
        self._database = database
        self._tracer = database.tracer
        self._wake_up = wake_up
        self._settings = settings.controller
        self._policy = settings.scheduling
        self._lease_seconds = settings.worker.lease_seconds
        self._lending = SlotLending(database, self._policy, self._lease_seconds, monotonic)
        self._monotonic = monotonic
        self._window = ReadWindow(gap_seconds=settings.worker.lease_seconds / 2)
        self._explained = -EXPLAIN_SECONDS
        self._obstructed: dict[tuple[Account, str, str], float] = {}
        """Time since which each look found an obstacle, by account, demand and type of the obstacle's event."""

    def tick(self) -> None:
        """Do one round. While the database does not answer, do nothing."""
        began, outcome = self._monotonic(), "ok"
        try:
            self._reap()
            self._explain()
            self._lending.lend()
            self._renew_extremes()
        except Unavailable as error:
            outcome = error.code
            self._window.reset()
            _log.warning("controller_round_failed", code=error.code, error=str(error))
        self._telemetry.rounds.labels(outcome).observe(self._monotonic() - began)

    def run(self, stop: threading.Event) -> None:
        """Do rounds until `stop` is set."""
        pause = min(self._settings.interval_seconds, self._lease_seconds / 4)  # a longer pause would look like a gap
        _log.info("controller_started", lease_seconds=self._lease_seconds, restart_budget=self._settings.restart_budget)
        while not stop.is_set():
            self._heartbeat.beat()
            self.tick()
            stop.wait(pause)
        _log.info("controller_stopped")

    def _reap(self) -> None:
        with self._database.read() as session:
            leases = LeaseRepository(session)
            watched = self._window.observe(leases.clock())
            expired = leases.expired()
        if watched < self._lease_seconds:
            return
        for lease in expired:
            self._take(lease)

    def _take(self, lease: ExpiredLease) -> None:
        with self._database.write() as session:
            lost = SimulatorRepository(session).count_connected(lease.run_id, lease.attempt)
            leases = LeaseRepository(session)
            state = leases.reap(lease, self._settings.restart_budget)
            self._window.observe(leases.clock())  # a round of many must not look like a gap
        if state is None:
            return
        self._telemetry.expired_leases.inc()
        self._telemetry.lost_sessions.inc(lost)
        if self._tracer is not None:
            why, facts = "The worker did not renew its lease.", {"ludus.worker.id": lease.worker_id}
            for name, began, ended in (
                ("attempt", lease.started_at, lease.heartbeat_at),
                ("lease expired", lease.heartbeat_at, None),
            ):
                self._tracer.of_run(
                    lease.run_id, name, began, ended, attempt=lease.attempt, failed=why, attributes=facts
                )
        _log.warning("lease_expired", run_id=lease.run_id, attempt=lease.attempt, state=state)
        if state is RunState.RECOVERING:
            self._wake_up.wake(lease.run_id)

    def _explain(self) -> None:
        """Record of waiting runs why no worker can take them, and delete the record once the reason is gone.

        An obstacle counts once it was found at every look for `explain_seconds`: a worker that restarts is absent for a
        moment, and a run that a dead worker left behind has waited long already.
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
        """Record why no worker can take a run, unless that has changed.

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


def main(settings: Settings) -> None:
    """Run a controller until SIGTERM or SIGINT."""
    stop = threading.Event()

    def finish(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, finish)
    signal.signal(signal.SIGINT, finish)
    telemetry = ControllerTelemetry()
    heartbeat = LoopHeartbeat(HANGS_SECONDS)
    probes = Probes(heartbeat.is_alive, heartbeat.is_alive)  # no client asks anything of a controller
    serve_metrics(telemetry.registry, settings.telemetry, settings.telemetry.controller_port, probes)
    database = Database.from_settings(settings.database, CONNECTIONS)
    database.tracer = tracer = open_tracer(settings.telemetry, "controller")
    notifier = WakeUpNotifier(database, WakeUpQueue(make_celery(settings)), settings)
    store = open_store(settings.storage)
    tasks: dict[str, BackgroundTask] = {
        "compaction": CompactionJob(database),
        "metrics": MetricRetentionJob(database, store, settings.metrics),
        "notifier": notifier,
        "ratings": RatingJob(database),
        "row retention": old_row_job(database, settings.controller),
        "retention": RetentionJob(database, store, settings.storage),
        "webhooks": Sender(database, settings.webhooks, telemetry),
    }
    if database.url.get_backend_name() == "sqlite":
        tasks["writers"] = StoppedWriterWatchdog(Path(database.url.database or ""), settings.worker.lease_seconds)
    # The notifier waits for the broker and retention for the artifact store; the next controller continues their work.
    waiting = {"metrics", "notifier", "retention"}
    threads = [
        threading.Thread(target=task.run, args=(stop,), name=name, daemon=name in waiting)
        for name, task in tasks.items()
    ]
    for thread in threads:
        thread.start()
    try:
        Controller(database, notifier, settings, telemetry=telemetry, heartbeat=heartbeat).run(stop)
    finally:
        stop.set()
        join_all(threads, LAST_SECONDS)
        database.close()
        if tracer is not None:
            tracer.close()


def join_all(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait until threads have ended; for all daemons together at most `seconds`: the grace period holds for all."""
    over = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, over - time.monotonic()) if thread.daemon else None)
