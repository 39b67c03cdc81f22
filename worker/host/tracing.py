"""The spans of an attempt, for OpenTelemetry: made of what its supervisor writes, only where traces are on.

The trainer and its collectors have no exporter, and know nothing of this.

    queue | recovery     from queueing the run, or the last heartbeat of the attempt that was interrupted, to the claim
    trainer start        from the claim until simulators can connect
    first simulator      from then until the first one is connected
    first action         from then until the first step is with a collector, and its behavior is admitted
    first update         from then to the end of the first update
    checkpoint           of each: from the beginning of its copy to its row
    attempt              from the claim to its end
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.schemas.states import RunState
from server.checkpoints.refs import NewCheckpoint
from server.kit.artifacts.store import ArtifactStore, FileRef
from server.kit.db.database import Database
from server.kit.states import LEASED
from server.kit.tracing import Attributes, Tracer
from server.lifecycle.claims.claim import Claim
from worker.host.telemetry import MeasuredLedger, MeasuredStore, WorkerTelemetry

MILESTONES = ("trainer start", "first simulator", "first action", "first update")
"""In the order in which they are reached."""


class AttemptSpans:
    """Sends the spans of one attempt."""

    def __init__(self, tracer: Tracer, claim: Claim) -> None:
        self._tracer = tracer
        self._claim = claim
        self._began = self._reached = time.time()
        self._next = 0
        """The first of `MILESTONES` that is not reached."""
        self._copies: dict[str, float] = {}
        """When the copy of a checkpoint began, by its path in the store."""
        self._send("recovery" if claim.recovers else "queue", self._began - claim.waited_seconds, self._began)

    def reach(self, milestone: str) -> None:
        """Send the span that ends with a milestone, if it is the next one. One that was not seen has none."""
        number = MILESTONES.index(milestone)
        if number >= self._next:
            now = time.time()
            self._send(milestone, self._reached, now)
            self._next, self._reached = number + 1, now

    def copy(self, path: str) -> None:
        """Note that the copy of a checkpoint begins."""
        self._copies[path] = time.time()

    def store(self, checkpoint: NewCheckpoint) -> None:
        """Send the span of a checkpoint that has its row."""
        size = sum(file.size for file in checkpoint.files)
        facts: Attributes = {
            "ludus.checkpoint.reason": checkpoint.reason,
            "ludus.step": checkpoint.step,
            "ludus.bytes": size,
        }
        self._send("checkpoint", self._copies.pop(checkpoint.path, time.time()), None, facts)

    def end(self, outcome: str, *, failed: str | None = None) -> None:
        """Send the span of the attempt."""
        facts = {"ludus.worker.id": self._claim.worker_id, "ludus.outcome": outcome}
        self._send("attempt", self._began, None, facts, failed=failed)

    def _send(
        self,
        name: str,
        began: float,
        ended: float | None,
        facts: Attributes | None = None,
        *,
        failed: str | None = None,
    ) -> None:
        claim = self._claim
        self._tracer.of_run(claim.run_id, name, began, ended, attempt=claim.attempt, failed=failed, attributes=facts)


class TracedLedger(MeasuredLedger):
    """A ledger that sends a span for each step of an attempt."""

    def __init__(
        self, spans: AttemptSpans, telemetry: WorkerTelemetry, database: Database, claim: Claim, restart_budget: int
    ) -> None:
        super().__init__(telemetry, database, claim, restart_budget)
        self._spans = spans

    def listening(self, endpoints: Sequence[Mapping[str, Any]]) -> None:
        """Publish the endpoints of the collectors."""
        super().listening(endpoints)
        self._spans.reach("trainer start")

    def event(self, type: str, message: str, *, level: str = "info", data: Mapping[str, Any] | None = None) -> None:  # noqa: A002
        """Append an event to the run."""
        super().event(type, message, level=level, data=data)
        if type == "learning_began":
            self._spans.reach("first update")

    def move(self, to: RunState, *, reason: Any = None, detail: str | None = None) -> None:
        """Move the run."""
        super().move(to, reason=reason, detail=detail)
        if to not in LEASED:
            self._spans.end(str(reason or to), failed=detail if to is RunState.FAILED else None)

    def release(self, outcome: str, detail: str, *, counts: bool | None = None) -> None:
        """End the attempt and leave the run to another worker."""
        super().release(outcome, detail, counts=counts)
        self._spans.end(outcome, failed=None if outcome == "released" else detail)

    def _count_simulator(self, session_id: str, change: str) -> None:
        super()._count_simulator(session_id, change)
        if change in {"connected", "plays"}:
            self._spans.reach("first simulator" if change == "connected" else "first action")

    def _count_checkpoint(self, checkpoint: NewCheckpoint) -> None:
        super()._count_checkpoint(checkpoint)
        self._spans.store(checkpoint)


class TracedStore(MeasuredStore):
    """An artifact store that notes when the copies of checkpoints begin."""

    def __init__(self, spans: AttemptSpans, store: ArtifactStore, telemetry: WorkerTelemetry) -> None:
        super().__init__(store, telemetry)
        self._spans = spans

    def publish(self, source: Path, path: str) -> list[FileRef]:
        """Publish a file or folder (`ArtifactStore.publish`)."""
        if "/checkpoints/" in path:
            self._spans.copy(path)
        return super().publish(source, path)
