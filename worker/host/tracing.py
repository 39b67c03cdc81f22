"""The spans of an attempt, for OpenTelemetry: made of what its supervisor writes, where traces are on.

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

from ludus.schemas.states import RunState
from server.kit.states import LEASED
from server.kit.tracing import Attributes, Tracer
from server.lifecycle.claims.repository import Claim
from server.runs.attempts import repository as observed
from worker.trainer.messages import LEARNING_BEGAN

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
                self._end(str(ended or to), failed=detail if to is RunState.FAILED else None)
            case observed.Released(outcome, detail):
                self._end(outcome, failed=None if outcome == "released" else detail)

    def _reach(self, milestone: str) -> None:
        """Send the span that ends with a milestone, if it is not reached yet. One that was passed over has none."""
        number = MILESTONES.index(milestone)
        if number >= self._next:
            now = time.time()
            self._send(milestone, self._reached, now)
            self._next, self._reached = number + 1, now

    def _end(self, outcome: str, *, failed: str | None) -> None:
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
