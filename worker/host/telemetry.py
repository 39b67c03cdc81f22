"""Operational metrics of a worker host: leases and checkpoints. The slots are processes; they count together in files.

The supervisor knows nothing of this: its ledger and its store are measured from outside.
"""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from server.checkpoints.refs import NewCheckpoint
from server.kit.artifacts.store import ArtifactStore, FileRef
from server.kit.errors import LudusError
from server.kit.probes import Probes
from server.kit.settings import TelemetrySettings
from server.kit.states import Intent
from server.kit.telemetry import BUCKETS, serve_metrics
from server.lifecycle.attempts.repository import AttemptLedger
from server.runs.bottleneck.times import TimeSpent
from worker.host.alive import is_alive


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


class MeasuredLedger(AttemptLedger):
    """A ledger that counts heartbeats and checkpoints."""

    def __init__(self, telemetry: WorkerTelemetry, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._telemetry = telemetry
        self.checkpoints.on_add = self._count_checkpoint

    def heartbeat(self, lease_seconds: float, step: int, time_spent: TimeSpent | None = None) -> Intent:
        """Renew the lease, and measure how long that takes."""
        began, outcome = time.monotonic(), "ok"
        try:
            return super().heartbeat(lease_seconds, step, time_spent)
        except LudusError as error:
            outcome = error.code
            raise
        finally:
            self._telemetry.heartbeats.labels(outcome).observe(time.monotonic() - began)

    def _count_checkpoint(self, checkpoint: NewCheckpoint) -> None:
        self._telemetry.checkpoints.inc()
        self._telemetry.checkpoint_bytes.inc(sum(file.size for file in checkpoint.files))


class MeasuredStore:
    """An artifact store that measures how long checkpoints take; everything else goes through."""

    def __init__(self, store: ArtifactStore, telemetry: WorkerTelemetry) -> None:
        self._store = store
        self._telemetry = telemetry

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Publish a file or folder (`ArtifactStore.publish`)."""
        began = time.monotonic()
        published = self._store.publish(source, path)
        if "/checkpoints/" in path:
            self._telemetry.publishing.observe(time.monotonic() - began)
        return published

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def serve_slots(settings: TelemetrySettings, alive_file: Path) -> None:
    """Serve what all slots of this host count together, and probes, if a port is set. Raises CannotStart."""
    if settings.worker_port and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        probe = partial(is_alive, alive_file)
        serve_metrics(registry, settings, settings.worker_port, Probes(probe, probe))
