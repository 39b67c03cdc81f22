"""Observers of a worker host's attempts: operational metrics, and spans for OpenTelemetry where traces are on.

Observers of attempts count and send; the supervisor, the trainer and its collectors know nothing of this. The slots are
processes; they count together in files.
"""

import os
import time
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from ludus.protocol.codes import CloseCode
from ludus.schemas.states import RunState
from server.kit.listening import TelemetrySettings
from server.kit.states import LEASED
from server.kit.telemetry import BUCKETS, Probes, serve_metrics
from server.kit.tracing import Attributes, Tracer
from server.lifecycle.claims.repository import Claim
from server.runs import attempts as observed
from worker.host.ending import is_alive
from worker.trainer.messages import LEARNING_BEGAN

START_BUCKETS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds."""
FAILURES: Final = frozenset({"collector_died", CloseCode.INTERNAL_ERROR, CloseCode.COLLECTOR_CLOSING})
"""Codes of sessions that ended because the server failed. A simulator that breaks the contract, hangs or loses its
network is no failure of the server, and `run_moved` hands simulators over.
"""


class WorkerTelemetry:
    """The counters of one slot."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()
        self.heartbeats = Histogram(
            "ludus_worker_heartbeat_seconds",
            "Renewing a lease: ok or the code of an error.",
            ["outcome"],
            buckets=BUCKETS,
            registry=registry,
        )
        self.checkpoints = Counter(
            "ludus_worker_checkpoints_total", "Checkpoints that were entered.", registry=registry
        )
        self.checkpoint_bytes = Counter(
            "ludus_worker_checkpoint_bytes_total", "Their files together.", registry=registry
        )
        self.publishing = Histogram(
            "ludus_worker_checkpoint_publish_seconds",
            "Copying a checkpoint into the artifact store.",
            buckets=BUCKETS,
            registry=registry,
        )
        self.starts = Histogram(
            "ludus_worker_start_seconds",
            "From queueing a run, or from the last heartbeat of the attempt that was interrupted, to the first action.",
            ["cause"],
            buckets=START_BUCKETS,
            registry=registry,
        )
        """By cause: `queued` or `interrupted`. Time in which only a simulator was missing is not in it."""
        self.sessions = Counter(
            "ludus_worker_sessions_total",
            "Sessions of simulators that have ended: by the simulator or the run, or lost by a failure of the server.",
            ["outcome"],
            registry=registry,
        )
        """By outcome: `ended` or `lost`. Both are there from the beginning: a first loss is an increase, too."""
        for outcome in ("ended", "lost"):
            self.sessions.labels(outcome)


class AttemptMeasurement:
    """Counts heartbeats, checkpoints and sessions of an attempt, and measures the time to the first action."""

    def __init__(self, telemetry: WorkerTelemetry, claim: Claim) -> None:
        self._telemetry = telemetry
        self._start: float | None = claim.waited_seconds
        """Seconds that the start has taken; None once the first action was computed."""
        self._since: float | None = time.monotonic()
        """The time since then belongs to the start, too. None while only a simulator is missing."""
        self._cause = "interrupted" if claim.recovers else "queued"
        self._connected: set[str] = set()
        """Session ids."""

    def observe(self, fact: observed.Observed) -> None:
        """Count something that the attempt has done."""
        match fact:
            case observed.Renewed(seconds, outcome):
                self._telemetry.heartbeats.labels(outcome).observe(seconds)
            case observed.Listening() if not self._connected:
                self._pause_start()
            case observed.SimulatorChanged(session_id, "connected"):
                self._connected.add(session_id)
                self._since = self._since or time.monotonic()
            case observed.SimulatorChanged(_, "plays"):
                self._pause_start()
                if self._start is not None:
                    self._telemetry.starts.labels(self._cause).observe(self._start)
                    self._start = None
            case observed.SimulatorChanged(session_id, change) if session_id in self._connected:
                self._connected.discard(session_id)
                self._telemetry.sessions.labels("lost" if change in FAILURES else "ended").inc()
            case observed.CheckpointCopied(_, seconds):
                self._telemetry.publishing.observe(seconds)
            case observed.CheckpointSaved():
                self._telemetry.checkpoints.inc()
                self._telemetry.checkpoint_bytes.inc(fact.size)
            case observed.Released():
                self._telemetry.sessions.labels("lost").inc(len(self._connected))
                self._connected.clear()

    def _pause_start(self) -> None:
        """Add the time since `_since` to the start, and count no more for now."""
        if self._start is not None and self._since is not None:
            self._start += time.monotonic() - self._since
        self._since = None


def serve_slots(settings: TelemetrySettings, alive_file: Path) -> None:
    """Serve what all slots of this host count together, and probes, if a port is set. Raises CannotStart."""
    if settings.worker_port and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        probe = partial(is_alive, alive_file)
        serve_metrics(registry, settings, settings.worker_port, Probes(probe, probe))


MILESTONES = ("trainer start", "first simulator", "first action", "first update")
"""In the order in which they are reached."""


class AttemptSpans:
    """Sends the spans of one attempt.

    queue | recovery     from queueing the run, or the last heartbeat of the attempt that was interrupted, to the claim
    trainer start        from the claim until simulators can connect
    first simulator      from then until the first one is connected
    first action         from then until the first step is with a collector, and its behavior is admitted
    first update         from then to the end of the first update
    checkpoint           of each: from the beginning of its copy to its row
    attempt              from the claim to its end
    """

    def __init__(self, tracer: Tracer, claim: Claim) -> None:
        self._tracer = tracer
        self._claim = claim
        self._began = self._reached = time.time()
        self._next = 0
        """The first of `MILESTONES` that is not reached."""
        self._copies: dict[str, float] = {}
        """When the copy of a checkpoint began, by its path in the store."""
        self._send("recovery" if claim.recovers else "queue", self._began - claim.waited_seconds, self._began)

    def observe(self, fact: observed.Observed) -> None:
        """Send the spans that end with what the attempt has done."""
        match fact:
            case observed.Listening():
                self._reach("trainer start")
            case observed.SimulatorChanged(_, "connected"):
                self._reach("first simulator")
            case observed.SimulatorChanged(_, "plays"):
                self._reach("first action")
            case observed.Recorded(event) if event == LEARNING_BEGAN:
                self._reach("first update")
            case observed.CheckpointCopied(path, seconds):
                self._copies[path] = time.time() - seconds
            case observed.CheckpointSaved(path, reason, step, size):
                facts: Attributes = {"ludus.checkpoint.reason": reason, "ludus.step": step, "ludus.bytes": size}
                self._send("checkpoint", self._copies.pop(path, time.time()), None, facts)
            case observed.Moved(to, ended, detail) if to not in LEASED:
                self._end(str(ended or to), detail if to is RunState.FAILED else None)
            case observed.Released(outcome, detail):
                self._end(outcome, None if outcome == "released" else detail)

    def _reach(self, milestone: str) -> None:
        """Send the span that ends with a milestone, if it is not reached yet. One that was passed over has none."""
        number = MILESTONES.index(milestone)
        if number >= self._next:
            now = time.time()
            self._send(milestone, self._reached, now)
            self._next, self._reached = number + 1, now

    def _end(self, outcome: str, failed: str | None) -> None:
        facts = {"ludus.worker.id": self._claim.worker_id, "ludus.outcome": outcome}
        self._send("attempt", self._began, None, facts, failed)

    def _send(
        self, name: str, began: float, ended: float | None, facts: Attributes | None = None, failed: str | None = None
    ) -> None:
        claim = self._claim
        self._tracer.of_run(claim.run_id, name, began, ended, attempt=claim.attempt, failed=failed, attributes=facts)
