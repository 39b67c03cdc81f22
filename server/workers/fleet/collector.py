"""The fleet's numbers as Prometheus metrics: read on request, and not more often than every few seconds.

Every api process exposes the same numbers: take the `max` over them, never the sum.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.kit.scheduling import SchedulingSettings
from server.kit.wake_up import WakeUp
from server.runs.scheduling.demand import Demand
from server.workers.fleet.repository import Fleet, FleetRepository

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
