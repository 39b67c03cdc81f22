"""Operational metrics of a worker host: leases and checkpoints. The slots are processes; they count together in files.

The supervisor knows nothing of this: an observer of its attempt counts.
"""

import os
import time
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from ludus.protocol.codes import CloseCode
from server.kit.listening import TelemetrySettings
from server.kit.telemetry import BUCKETS, Probes, serve_metrics
from server.lifecycle.claims.repository import Claim
from server.runs.attempts import repository as observed
from worker.host.alive import is_alive

START_BUCKETS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds."""
FAILURES: Final = frozenset({"collector_died", CloseCode.INTERNAL_ERROR, CloseCode.COLLECTOR_CLOSING})
"""Codes of sessions that ended because the server failed. A simulator that breaks the contract, hangs or loses its
network is no failure of the server, and `run_moved` hands simulators over.
"""


class WorkerTelemetry:
    """The counters of one slot."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.heartbeats = Histogram(
            "ludus_worker_heartbeat_seconds",
            "Renewing a lease: ok or the code of an error.",
            ["outcome"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.checkpoints = Counter(
            "ludus_worker_checkpoints_total", "Checkpoints that were entered.", registry=self.registry
        )
        self.checkpoint_bytes = Counter(
            "ludus_worker_checkpoint_bytes_total", "Their files together.", registry=self.registry
        )
        self.publishing = Histogram(
            "ludus_worker_checkpoint_publish_seconds",
            "Copying a checkpoint into the artifact store.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.starts = Histogram(
            "ludus_worker_start_seconds",
            "From queueing a run, or from the last heartbeat of the attempt that was interrupted, to the first action.",
            ["cause"],
            buckets=START_BUCKETS,
            registry=self.registry,
        )
        """By cause: `queued` or `interrupted`. Time in which only a simulator was missing is not in it."""
        self.sessions = Counter(
            "ludus_worker_sessions_total",
            "Sessions of simulators that have ended: by the simulator or the run, or lost by a failure of the server.",
            ["outcome"],
            registry=self.registry,
        )
        """By outcome: `ended` or `lost`. Both are there from the beginning: a first loss is an increase, too."""
        for outcome in ("ended", "lost"):
            self.sessions.labels(outcome)


class AttemptMeasurement:
    """Counts heartbeats, checkpoints and sessions of simulators of an attempt, and measures the time to the first
    action.
    """

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
            case observed.SimulatorChanged(session_id, change):
                self._count_simulator(session_id, change)
            case observed.CheckpointCopied(_, seconds):
                self._telemetry.publishing.observe(seconds)
            case observed.CheckpointSaved():
                self._telemetry.checkpoints.inc()
                self._telemetry.checkpoint_bytes.inc(fact.size)
            case observed.Released():
                self._telemetry.sessions.labels("lost").inc(len(self._connected))
                self._connected.clear()

    def _count_simulator(self, session_id: str, change: str) -> None:
        match change:
            case "connected":
                self._connected.add(session_id)
                self._since = self._since or time.monotonic()
            case "plays":
                self._pause_start()
                if self._start is not None:
                    self._telemetry.starts.labels(self._cause).observe(self._start)
                    self._start = None
            case _ if session_id in self._connected:
                self._connected.discard(session_id)
                self._telemetry.sessions.labels("lost" if change in FAILURES else "ended").inc()

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
