"""Leases: the end of attempts, and the next state of a run whose worker is gone.

A lease lies in the attempt's row and is evaluated by the database's clock alone.
"""

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from ludus.schemas.states import RunState, StopReason
from server.checkpoints.models import Checkpoint
from server.checkpoints.requests.repository import CheckpointRequestRepository
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.kit.db.texts import storable
from server.kit.states import EVENT_OF, LEASED, Intent
from server.runs.events.repository import Note, lock_run, move
from server.runs.models import Attempt, Run
from server.simulators.repository import SimulatorRepository
from server.workers.models import Worker


@dataclass(frozen=True)
class ExpiredLease:
    """An attempt whose lease had run out when the database was read."""

    run_id: str
    attempt: int
    worker_id: str
    started_at: float
    heartbeat_at: float


class LeaseRepository(Repository):
    """Finds leases that ran out, takes runs from their holders, and finds runs that wait for a worker."""

    def expired(self, limit: int = 100) -> list[ExpiredLease]:
        """Return attempts whose lease has run out, the oldest first."""
        rows = self._session.execute(
            select(Attempt.run_id, Attempt.number, Attempt.worker_id, Attempt.started_at, Attempt.heartbeat_at)
            .where(Attempt.lease_expires_at < now())
            .order_by(Attempt.lease_expires_at)
            .limit(limit)
        )
        return [ExpiredLease(*row) for row in rows]

    def reap(self, lease: ExpiredLease, restart_budget: int) -> RunState | None:
        """Take a run from the holder of an expired lease; return the run's new state, None if nothing was to be done.

        The race: the holder renews, ends, or another reaper is faster between our look and our act. The run's row is
        locked, and nothing happens unless the attempt number that was seen still holds the run and its lease is still
        expired. A row that another transaction has locked is left for the next round: its holder may be stopped in the
        middle of a write, and waiting for it would keep all other runs from being looked at.
        """
        run = lock_run(self._session, lease.run_id, patient=False)
        if run is None:
            return None
        seen = (Attempt.run_id == run.id, Attempt.number == lease.attempt, Attempt.lease_expires_at < now())
        attempt = self._session.scalars(select(Attempt).where(*seen)).one_or_none()
        if attempt is None or run.attempt != lease.attempt or run.state not in LEASED:
            return None
        detail = f"Worker {attempt.worker_id} was not heard of for longer than its lease."
        return end_without_result(self._session, run, "lease_expired", detail, restart_budget, counts=True)


def end_without_result(
    session: Session, run: Run, outcome: str, detail: str, restart_budget: int, *, counts: bool
) -> RunState:
    """End the attempt of a locked run that did not finish it, and decide what becomes of the run.

    A user's request outlives the attempt: a run that was to be cancelled is CANCELLED, one that was to be stopped is
    SUCCEEDED with its newest checkpoint, one that was to pause is PAUSED. Otherwise the run is RECOVERING, until
    `restart_budget` restarts without progress are spent; `counts` says whether this one is charged.
    """
    intent = run.intent
    end_attempt(session, run, outcome, detail)
    if intent == Intent.CANCEL:
        return finish(session, run, RunState.CANCELLED, StopReason.USER, detail)
    spent = run.restarts_without_progress + (1 if counts else 0)
    if counts and intent not in {Intent.STOP, Intent.PAUSE} and spent > restart_budget:
        reason = StopReason(outcome) if outcome in set(StopReason) else StopReason.WORKER_LOST
        why = f"{detail.removesuffix('.')}. The budget of {restart_budget} restarts without a new checkpoint is spent."
        return finish(session, run, RunState.FAILED, reason, why)
    data = {"outcome": outcome, "restarts_without_progress": spent, "restart_budget": restart_budget}
    note = Note(EVENT_OF[RunState.RECOVERING], detail, "warning" if counts else "info", data)
    move(session, run, RunState.RECOVERING, note, restarts_without_progress=spent, intent=None)
    why = f"{detail} {left_behind(session, run)}"
    if intent == Intent.STOP:
        return finish(session, run, RunState.SUCCEEDED, StopReason.USER, why)
    if intent == Intent.PAUSE:
        return finish(session, run, RunState.PAUSED, StopReason.USER, why)
    return RunState.RECOVERING


def apply_intent(session: Session, run: Run, intent: str | None) -> None:
    """Apply the intent of a locked run that has just paused: stop or cancel it if a user asked for that meanwhile.

    The race: a run pauses, by itself or on request, and its supervisor does not look at the row again before it writes
    PAUSED. A request for the end meanwhile was accepted, so the run has to end.
    """
    if intent == Intent.CANCEL:
        finish(session, run, RunState.CANCELLED, StopReason.USER, "Cancelled by a user while the run paused.")
    elif intent == Intent.STOP:
        why = f"Stopped by a user while the run paused. {left_behind(session, run)}"
        finish(session, run, RunState.SUCCEEDED, StopReason.USER, why)


def end_attempt(session: Session, run: Run, outcome: str, detail: str | None) -> None:
    """Close the present attempt of a locked run: no lease, no simulators, an idle worker."""
    worker_id = session.scalar(
        update(Attempt)
        .where(Attempt.run_id == run.id, Attempt.number == run.attempt, Attempt.ended_at.is_(None))
        .values(ended_at=now(), lease_expires_at=None, outcome=storable(outcome, 32), detail=storable(detail or ""))
        .returning(Attempt.worker_id)
    )
    session.execute(update(Worker).where(Worker.id == worker_id, Worker.run_id == run.id).values(run_id=None))
    reason = f"The attempt that it was connected to ended ({outcome})."
    SimulatorRepository(session).mark_disconnected(run.id, run.attempt, "attempt_ended", reason)


def left_behind(session: Session, run: Run) -> str:
    """Return a sentence that names the newest checkpoint of a run."""
    step = session.scalar(
        select(Checkpoint.step)
        .where(Checkpoint.run_id == run.id, Checkpoint.deleted_at.is_(None))
        .order_by(Checkpoint.attempt.desc(), Checkpoint.step.desc())
        .limit(1)
    )
    return "There is no checkpoint." if step is None else f"Its newest checkpoint is of step {step}."


def finish(session: Session, run: Run, to: RunState, reason: StopReason, detail: str) -> RunState:
    """Move a locked run to PAUSED or its end, and answer the requests for checkpoints that it leaves open."""
    level = "error" if to is RunState.FAILED else "info"
    move(session, run, to, Note(EVENT_OF[to], detail, level), reason=reason, detail=detail)
    CheckpointRequestRepository(session).settle(run.id, to)
    return to
