"""The fleet's numbers (runs by state, waiting times, attempts by outcome, pending messages) as Prometheus metrics.

They are read on request, and not more often than every few seconds. Every api process exposes the same numbers: take
the `max` over them, never the sum."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import CompoundSelect, case, func, select, text, union_all

from ludus.schemas.states import RunState
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.db.repository import Repository
from server.kit.errors import Unavailable
from server.kit.scheduling import SchedulingSettings
from server.kit.states import TERMINAL
from server.kit.wake_up import WakeUp
from server.runs.models import CLAIMABLE_SQL, Attempt, DeletedAttempts, Lease, Run
from server.runs.scheduling.demand import Demand
from server.runs.scheduling.queue import QueuedDemand
from server.simulators.models import Simulator
from server.webhooks.models import PENDING_SQL, Delivery, Webhook
from server.workers.repository import QueueRepository, WorkerRepository

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The numbers of one moment. Ages are in seconds, 0 where there is nothing to be old."""

    runs: Mapping[str, int]
    """By state; every state is there."""
    oldest_queued_seconds: float
    """Longest time that a run has waited for a worker."""
    queue: Sequence[QueuedDemand]
    """The waiting runs by their demand, the demand with the most runs first."""
    workers_busy: int
    workers_idle: int
    workers_cordoned: int
    """Without a run, and not to take one."""
    workers_silent: int
    """Lost or hanging within the last hour (`WorkerRepository.silent`)."""
    simulators: int
    """Connected to runs that have not ended."""
    attempts_live: int
    oldest_heartbeat_seconds: float
    """Since the heartbeat of the live attempt that was silent longest."""
    attempts_ended: Mapping[str, int]
    """By outcome; `lease_expired` are those that lost their lease. With those of deleted runs: they never fall."""
    agent_steps: int
    """Trained by all attempts together, with those of deleted runs."""
    deliveries_pending: int
    oldest_due_seconds: float
    """Longest time that a message has been due."""
    webhooks_disabled: Mapping[str, int]
    """By reason."""


class FleetRepository(Repository):
    """Reads the numbers."""

    def read(self, policy: SchedulingSettings, silent_seconds: float) -> Fleet:
        """Read all numbers. A worker without a heartbeat for `silent_seconds` does not count."""
        scalar, execute = self._session.scalar, self._session.execute
        runs = dict.fromkeys((state.value for state in RunState), 0)
        runs |= {row[0]: row[1] for row in execute(select(Run.state, func.count()).group_by(Run.state))}
        slots = WorkerRepository(self._session).slots(silent_seconds)
        workers = Counter[str]()
        for slot, count in slots.items():
            workers["busy" if not slot.idle else "cordoned" if slot.offer.cordoned else "idle"] += count
        live_runs = select(Run.id).where(Run.state.in_([state for state in RunState if state not in TERMINAL]))
        lease = (Lease.run_id == Attempt.run_id) & (Lease.attempt == Attempt.number)
        heard = func.coalesce(Lease.renewed_at, Attempt.heartbeat_at)
        leased = select(func.count(), now() - func.min(heard)).select_from(Attempt).outerjoin(Lease, lease)
        leased = leased.where(Attempt.lease_expires_at.is_not(None))
        live, oldest_heartbeat = execute(leased).one()
        # An attempt of the release before `0027` that has not reported yet has step 0, below the one it resumes from.
        step = func.coalesce(Lease.step, Attempt.step)
        trained = func.sum(case((step > Attempt.resume_step, step - Attempt.resume_step), else_=0))
        outcomes = select(Attempt.outcome, func.count(), trained).outerjoin(Lease, lease).group_by(Attempt.outcome)
        # One statement: a deletion that commits meanwhile has moved attempts from the one to the other, or has not.
        deleted = select(DeletedAttempts.outcome, DeletedAttempts.attempts, DeletedAttempts.agent_steps)
        ended, agent_steps = Counter[str](), 0
        counted: CompoundSelect[Any] = union_all(outcomes, deleted)
        for outcome, count, steps in execute(counted):
            ended[outcome or ""] += count
            agent_steps += int(steps)
        del ended[""]  # those that go on
        deliveries = (
            select(func.count(), now() - func.min(Delivery.next_try_at))
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .where(text(f"webhook_deliveries.{PENDING_SQL}"), Webhook.enabled)
        )
        pending, oldest_due = execute(deliveries).one()
        disabled = select(Webhook.disabled_reason, func.count()).where(~Webhook.enabled)
        return Fleet(
            runs=runs,
            oldest_queued_seconds=max(
                0.0, scalar(select(now() - func.min(Run.queued_at)).where(text(CLAIMABLE_SQL))) or 0.0
            ),
            queue=QueueRepository(self._session).read(policy, silent_seconds),
            workers_busy=workers["busy"],
            workers_idle=workers["idle"],
            workers_cordoned=workers["cordoned"],
            workers_silent=WorkerRepository(self._session).silent(HOUR_SECONDS),
            simulators=scalar(
                select(func.count()).where(Simulator.run_id.in_(live_runs), Simulator.state == "connected")
            )
            or 0,
            attempts_live=live,
            oldest_heartbeat_seconds=max(0.0, oldest_heartbeat or 0.0),
            attempts_ended=ended,
            agent_steps=agent_steps,
            deliveries_pending=pending,
            oldest_due_seconds=max(0.0, oldest_due or 0.0),
            webhooks_disabled={
                reason or "user": count for reason, count in execute(disabled.group_by(Webhook.disabled_reason))
            },
        )


FRESH_SECONDS: Final = 5.0
"""Time for which the numbers are reused."""
DEMANDS: Final = 50
"""Demands that are label values, those with the most runs; the runs of all others count as `other`."""
_log = structlog.get_logger(__name__)


class FleetMetrics(Collector):
    """Exposes the newest numbers; while the database does not answer, only that."""

    def __init__(self, database: Database, wake_up: WakeUp, policy: SchedulingSettings, silent_seconds: float) -> None:
        self._database = database
        self._wake_up = wake_up
        self._policy = policy
        self._silent_seconds = silent_seconds
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._broker_up = False
        self._server: tuple[int, int] | None = None
        """Connections of the database's server, in use and possible; None where it has no limit."""
        self._read_at = -FRESH_SECONDS

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        fleet = self._fresh()
        answered = "answered when it was last asked (1 or 0)."
        yield _family("ludus_database_up", f"Whether the database {answered}", bool(fleet))
        yield _family("ludus_broker_up", f"Whether the broker {answered}", self._broker_up)
        pools = self._database.connections() | ({} if self._server is None else {"server": self._server})
        used, limits = ({pool: numbers[place] for pool, numbers in pools.items()} for place in (0, 1))
        text = "Connections of this process that are in use; pool `server`: of the database with all its clients."
        yield _family("ludus_database_connections_used", text, used, "pool")
        text = "Connections that this process may have; pool `server`: that the database may have."
        yield _family("ludus_database_connections_limit", text, limits, "pool")
        if fleet is not None:
            yield from _metrics(fleet, self._policy.pools)

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without asking the database."""
        yield from ()

    def _fresh(self) -> Fleet | None:
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                try:
                    with self._database.read() as session:
                        self._fleet = FleetRepository(session).read(self._policy, self._silent_seconds)
                    self._server = self._database.server_connections()
                except Unavailable as error:
                    _log.warning("fleet_not_read", code=error.code, error=str(error))
                    self._fleet = None
                try:
                    self._wake_up.ping()
                except Unavailable as error:
                    _log.warning("broker_not_reached", code=error.code, error=str(error))
                    self._broker_up = False
                else:
                    self._broker_up = True
                self._read_at = time.monotonic()
            return self._fleet


def _metrics(fleet: Fleet, pools: Iterable[str]) -> Iterator[Metric]:
    waiting = {Demand().name: 0} if not fleet.queue else {}
    waiting |= {queued.demand.name: queued.runs for queued in fleet.queue[:DEMANDS]}
    if remaining := sum(queued.runs for queued in fleet.queue[DEMANDS:]):
        waiting["other"] = remaining
    missing = Counter(dict.fromkeys((*pools, "none"), 0))
    for queued in fleet.queue:
        missing[queued.pool or "none"] += queued.missing_slots
    workers = {"busy": fleet.workers_busy, "idle": fleet.workers_idle, "cordoned": fleet.workers_cordoned}
    ended = {"lease_expired": 0} | dict(fleet.attempts_ended)
    disabled = {"user": 0, "gone": 0, "failing": 0} | dict(fleet.webhooks_disabled)
    yield _family("ludus_runs", "Runs by state.", fleet.runs, "state")
    yield _family("ludus_queue_runs", "Runs that wait for a worker, by their demand.", waiting, "demand")
    text = "Slots that waiting runs lack beyond the idle ones, by declared pool."
    yield _family("ludus_queue_missing_slots", text, missing, "pool")
    text = "How long the run has waited that waits longest."
    yield _family("ludus_queue_oldest_seconds", text, fleet.oldest_queued_seconds)
    yield _family("ludus_workers", "Worker slots that are alive.", workers, "state")
    text = "Worker slots that fell silent within the last hour, and that no slot of their host has followed."
    yield _family("ludus_workers_silent", text, fleet.workers_silent)
    yield _family("ludus_simulators_connected", "Simulators that play in runs.", fleet.simulators)
    yield _family("ludus_attempts_live", "Attempts that hold a lease.", fleet.attempts_live)
    text = "Since the last heartbeat of the live attempt that was silent longest."
    yield _family("ludus_heartbeat_oldest_seconds", text, fleet.oldest_heartbeat_seconds)
    text = "Attempts that have ended, by outcome; lease_expired are lost leases."
    yield _family("ludus_attempts_ended_total", text, ended, "outcome")
    yield _family("ludus_agent_steps_total", "Agent steps of all attempts.", fleet.agent_steps)
    text = "Messages for enabled webhooks that have not arrived."
    yield _family("ludus_webhook_deliveries_pending", text, fleet.deliveries_pending)
    text = "How late the message is that is due longest."
    yield _family("ludus_webhook_oldest_due_seconds", text, fleet.oldest_due_seconds)
    yield _family("ludus_webhooks_disabled", "Disabled webhooks, by reason.", disabled, "reason")


def _family(name: str, text: str, values: float | Mapping[str, float], *labels: str) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    if not isinstance(values, Mapping):
        return kind(name, text, values)
    family = kind(name, text, labels=labels)
    for value, count in values.items():
        family.add_metric([value], count)
    return family
