"""The controller: background jobs on the system of record (docs/jobs.md). Those of runs are here: runs are taken from
lost workers, slots of runs without games are lent, and runs that cannot start say why.

Any number of controllers may run: every action is decided again in the database, under the run's lock.

The controller itself may be late: after an outage of the database, a pause of its host or its own start, every lease
looks expired although every worker lives. So it takes runs away only after it has read the database without a gap for
one full lease, on the database's clock: in that time every living worker could have renewed its lease.

Jobs that may take long have threads of their own (`job_loops`), so that they don't delay others. If one ends by an
exception, the controller ends with it (`ludus.threads`), and is started again.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from ludus.schemas.states import RunState
from server.access.repository import AuditRepository, SessionRepository
from server.checkpoints.retention import Retention
from server.controller.notifier import WakeUpNotifier
from server.kit.artifacts.opening import open_store
from server.kit.db.database import Database
from server.kit.db.stopped_writer import StoppedWriterWatchdog
from server.kit.errors import Unavailable
from server.kit.http.repository import IdempotencyRepository
from server.kit.jobs import Job, JobLoop
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import ControllerSettings, Settings
from server.kit.telemetry import ControllerTelemetry, LoopHeartbeat, Probes, serve_metrics
from server.kit.tracing import open_tracer
from server.kit.wake_up import Wakes
from server.ladders import ratings
from server.lifecycle import retention as rows
from server.lifecycle.experiments.rounds import ExperimentRounds
from server.lifecycle.leases.repository import ExpiredLease, LeaseRepository
from server.lifecycle.lending import SlotLending
from server.lifecycle.retention import RowRetention, delete_in_batches
from server.lifecycle.service import ROWS
from server.metrics.jobs import MetricRetention, packing_job
from server.runs.scheduling.order import Account, Obstacle, obstacle
from server.runs.scheduling.repository import WaitingRuns
from server.simulators.repository import SimulatorRepository
from server.webhooks.sender import Sender
from server.workers.repository import WorkerRepository

_log = structlog.get_logger(__name__)


def old_row_jobs(database: Database, settings: ControllerSettings) -> Sequence[Job]:
    """Make the jobs that delete old rows of every kind."""
    deletions = {
        "idempotency_keys": lambda session: IdempotencyRepository(session).forget(settings.idempotency_seconds, ROWS),
        "workers": lambda session: WorkerRepository(session).forget(settings.worker_seconds, ROWS),
        "audit_entries": lambda session: AuditRepository(session).forget(settings.audit_days, ROWS),
        "sessions": lambda session: SessionRepository(session).forget(ROWS),
    }
    jobs = [Job(f"old_{kind}", partial(delete_in_batches, database, delete)) for kind, delete in deletions.items()]
    return [*RowRetention(database, settings).jobs(), *jobs]


CONNECTIONS = 8
"""Connections with the database: one for most loops of jobs, and some for messages that are sent."""
EXPLAIN_SECONDS = 5.0
"""Pause between two looks at the demands of waiting runs."""
HANGS_SECONDS = 300.0
"""A controller whose round has taken longer fails its liveness probe. Each statement has a time-out of its own."""
DAEMONS = frozenset({"experiments", "metrics", "notifier", "store"})
"""Loops that wait for the broker or the artifact store; the next controller continues their work."""
LAST_SECONDS = 5.0
"""Time for the artifact store and the broker to answer when the controller stops, for both together."""


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
    """The jobs of runs. Their state is only in the database, so another controller can replace this one."""

    def __init__(
        self,
        database: Database,
        wake_up: Wakes,
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
        telemetry: ControllerTelemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or ControllerTelemetry()
        self._database = database
        self._tracer = database.tracer
        self._wake_up = wake_up
        self._settings = settings.controller
        self._policy = settings.scheduling
        self._lease_seconds = settings.worker.lease_seconds
        self._lending = SlotLending(database, self._policy, self._lease_seconds, monotonic)
        self._monotonic = monotonic
        self._window = ReadWindow(gap_seconds=settings.worker.lease_seconds / 2)
        self._obstructed: dict[tuple[Account, str, str], float] = {}
        """Time since which each look found an obstacle, by account, demand and type of the obstacle's event."""

    def loop(self, beat: Callable[[], None] = lambda: None) -> JobLoop:
        """Return the loop of the jobs, which calls `beat` in each turn."""
        jobs = (
            Job("leases", self._reap, longest_pause_seconds=0.0),
            Job("explanations", self._explain, EXPLAIN_SECONDS),
            Job("lending", self._lending.lend),
        )
        pause = min(self._settings.interval_seconds, self._lease_seconds / 4)  # a longer pause would look like a gap
        return JobLoop(jobs, pause, self._telemetry, self._monotonic, beat=beat)

    def _reap(self) -> int:
        """Take runs from workers that have not renewed their leases; return how many leases had expired."""
        try:
            with self._database.read() as session:
                leases = LeaseRepository(session)
                watched = self._window.observe(leases.clock())
                expired = leases.expired()
            if watched < self._lease_seconds:
                return 0
            for lease in expired:
                self._take(lease)
        except Unavailable:
            self._window.reset()
            raise
        return len(expired)

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

    def _explain(self) -> int:
        """Record of waiting runs why no worker can take them, and delete the record once the reason is gone; return of
        how many runs.

        An obstacle counts once it was found at every look for `explain_seconds`: a worker that restarts is absent for a
        moment, and a run that a dead worker left behind has waited long already.
        """
        now = self._monotonic()
        with self._database.read() as session:
            runs = WaitingRuns(session)
            offers = WorkerRepository(session).offers(self._lease_seconds)
            running = runs.running()
            groups = {(head.account, head.demand) for head in runs.heads()}
            obstacles = {group: obstacle(*group, offers, running, self._policy) for group in groups}
            news: dict[str, Obstacle | None] = {
                run_id: None for run_id, account, demand in runs.informed() if obstacles.get((account, demand)) is None
            }
            met = {(account, demand, why.event): why for (account, demand), why in obstacles.items() if why is not None}
            self._obstructed = {key: self._obstructed.get(key, now) for key in met}
            for key, obstacle_met in met.items():
                if now - self._obstructed[key] >= self._policy.explain_seconds:
                    ids = runs.uninformed(key[0], key[1], obstacle_met, since_seconds=self._policy.explain_seconds)
                    news |= dict.fromkeys(ids, obstacle_met)
        for run_id, why in news.items():
            self._inform(run_id, why)
        return len(news)

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


def main(settings: Settings) -> None:
    """Run a controller until SIGTERM or SIGINT."""
    telemetry = ControllerTelemetry()
    heartbeat = LoopHeartbeat(HANGS_SECONDS)
    probes = Probes(heartbeat.is_alive, heartbeat.is_alive)  # no client asks anything of a controller
    serve_metrics(telemetry.registry, settings.telemetry, settings.telemetry.controller_port, probes)
    database = Database.from_settings(settings.database, CONNECTIONS)
    database.tracer = tracer = open_tracer(settings.telemetry, "controller")
    notifier = WakeUpNotifier(database, WakeUpQueue(make_celery(settings)), settings)
    sender = Sender(database, settings.webhooks, telemetry)
    loops = job_loops(database, settings, notifier, sender, telemetry)
    runs = Controller(database, notifier, settings, telemetry=telemetry).loop(heartbeat.beat)
    stop = threading.Event()

    def finish(_signal: int, _frame: FrameType | None) -> None:
        stop.set()
        runs.wake()

    signal.signal(signal.SIGTERM, finish)
    signal.signal(signal.SIGINT, finish)
    threads = [
        threading.Thread(target=loop.run, args=(stop,), name=name, daemon=name in DAEMONS)
        for name, loop in loops.items()
    ]
    for thread in threads:
        thread.start()
    _log.info("controller_started", lease_seconds=settings.worker.lease_seconds)
    try:
        runs.run(stop)
    finally:
        stop.set()
        for loop in loops.values():
            loop.wake()
        join_all(threads, LAST_SECONDS)
        sender.close()
        database.close()
        if tracer is not None:
            tracer.close()
        _log.info("controller_stopped")


def job_loops(
    database: Database, settings: Settings, notifier: WakeUpNotifier, sender: Sender, telemetry: ControllerTelemetry
) -> Mapping[str, JobLoop]:
    """Make the loops that have threads of their own, by name. docs/jobs.md says when a job needs another loop."""
    store, interval = open_store(settings.storage), settings.controller.interval_seconds
    loops = {
        "compaction": JobLoop([packing_job(database)], 2.0, telemetry),
        "experiments": JobLoop([ExperimentRounds(database, store, notifier).job()], 1.0, telemetry),
        "metrics": JobLoop(MetricRetention(database, store, settings.metrics).jobs(), 10.0, telemetry),
        "notifier": JobLoop([notifier.job()], interval, telemetry, called=notifier.called),
        "ratings": JobLoop([ratings.RatingJob(database).job()], ratings.PAUSE_SECONDS, telemetry),
        "rows": JobLoop(old_row_jobs(database, settings.controller), rows.PAUSE_SECONDS, telemetry),
        "store": JobLoop(Retention(database, store, settings.storage).jobs(), 1.0, telemetry),
        "webhooks": JobLoop(sender.jobs(), settings.webhooks.interval_seconds, telemetry, called=sender.called),
    }
    if database.url.get_backend_name() == "sqlite":
        watchdog = StoppedWriterWatchdog(Path(database.url.database or ""), settings.worker.lease_seconds)
        loops["writers"] = JobLoop([Job("stopped_writers", lambda: int(watchdog.look() is not None))], 1.0, telemetry)
    return loops


def join_all(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait until threads have ended; for all daemons together at most `seconds`: the grace period holds for all."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()) if thread.daemon else None)
