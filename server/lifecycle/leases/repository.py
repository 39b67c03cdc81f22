"""Leases: granted, renewed and taken away; the end of attempts, and the next state of a run whose worker is gone.

The lease of a live attempt is a row of `leases`, evaluated by the database's clock alone.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Double,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ludus.schemas.states import RunState, StopReason
from server.checkpoints.models import Checkpoint
from server.checkpoints.repository import CheckpointRequestRepository
from server.kit.db.base import Timestamp
from server.kit.db.clock import later, now
from server.kit.db.repository import Repository
from server.kit.db.texts import storable
from server.kit.states import EVENT_OF, LEASED, Intent
from server.runs.diagnosis import TimeSpent
from server.runs.events.repository import UNTRACKED, Note, lock_run, move
from server.runs.models import Attempt, Event, Lease, Run
from server.simulators.repository import SimulatorRepository
from server.workers.models import Worker

SLOT_LENT: Final = "slot_lent"
"""Type of the event that an attempt's slot is lent."""


@dataclass(frozen=True)
class Renewal:
    """The answer to a heartbeat."""

    intent: Intent
    """The user's."""
    requests: int
    """Moves with each request to the trainer: an amendment, an edit of a parameter, a checkpoint, a profile, places for
    edge collectors."""


@dataclass(frozen=True)
class ExpiredLease:
    """An attempt whose lease had run out when the database was read."""

    run_id: str
    attempt: int
    worker_id: str
    started_at: float
    heartbeat_at: float


class LeaseRepository(Repository):
    """Grants and renews leases, finds those that ran out, and takes runs from their holders."""

    def grant(self, run_id: str, attempt: int, worker_id: str, seconds: float, step: int) -> None:
        """Give the lease of a locked run to a new attempt."""
        values = {"run_id": run_id, "attempt": attempt, "worker_id": worker_id, "seconds": seconds, "step": step}
        self._session.execute(_GRANTED[self._session.get_bind().dialect.name], values)

    def renew(
        self, run_id: str, attempt: int, seconds: float, step: int, time_spent: TimeSpent | None
    ) -> Renewal | None:
        """Renew the lease of an attempt from now on; None where it does not hold the run any more.

        One statement, which waits for no lock of the run. The race: the controller ends the attempt meanwhile. It
        deletes the lease, so that either this statement finds none, or the controller finds it renewed.
        """
        values = {
            "of_run": run_id,
            "of_attempt": attempt,
            "seconds": seconds,
            "new_step": step,
            "new_times": None if time_spent is None else time_spent.pack(),
        }
        row = self._session.execute(_RENEWED, values, execution_options=UNTRACKED).one_or_none()
        return None if row is None else Renewal(Intent(row[0] or Intent.NONE), row[1])

    def expired(self, limit: int = 100) -> list[ExpiredLease]:
        """Return attempts whose lease has run out, the oldest first."""
        same = (Lease.run_id == Attempt.run_id) & (Lease.attempt == Attempt.number)
        query = select(Lease.run_id, Lease.attempt, Lease.worker_id, Attempt.started_at, Lease.renewed_at)
        query = query.join(Attempt, same).where(Lease.expires_at < now()).order_by(Lease.expires_at)
        return [ExpiredLease(*row) for row in self._session.execute(query.limit(limit))]

    def reap(self, lease: ExpiredLease, restart_budget: int) -> RunState | None:
        """Take a run from the holder of an expired lease; return the run's new state, None if nothing was to be done.

        The race: the holder renews, ends, or another reaper is faster between our look and our act. The run's row is
        locked, and nothing happens unless the attempt number that was seen still holds the run and its lease is still
        expired. A row that another transaction has locked is left for the next round: its holder may be stopped in the
        middle of a write, and waiting for it would keep all other runs from being looked at.
        """
        run = lock_run(self._session, lease.run_id, patient=False)
        if run is None or run.attempt != lease.attempt or run.state not in LEASED:
            return None
        present = self._locked(select(Lease).where(*_of_attempt(run.id, lease.attempt)))
        if present is None or present.expires_at >= self.clock():
            return None
        detail = f"Worker {present.worker_id} was not heard of for longer than its lease."
        return end_without_result(self._session, run, "lease_expired", detail, restart_budget, counts=True)


def _granted(insert: Callable[[type[Lease]], sqlite.Insert | postgresql.Insert]) -> sqlite.Insert | postgresql.Insert:
    lease = insert(Lease).values(
        expires_at=now() + bindparam("seconds", type_=Double()), renewed_at=now(), step_at=now(), time_spent=None
    )
    return lease.on_conflict_do_update(index_elements=["run_id"], set_=dict(lease.excluded))


_GRANTED: Final = {"sqlite": _granted(sqlite.insert), "postgresql": _granted(postgresql.insert)}
_OF_RUN: Final = bindparam("of_run", type_=Lease.run_id.type)
_OF_ATTEMPT: Final = bindparam("of_attempt", type_=Lease.attempt.type)
_STEP: Final = bindparam("new_step", type_=Lease.step.type)
_RENEWED: Final = (
    update(Lease)
    .where(
        Lease.run_id == _OF_RUN,
        Lease.attempt == _OF_ATTEMPT,
        exists().where(Run.id == _OF_RUN, Run.attempt == _OF_ATTEMPT, Run.state.in_(LEASED)),
    )
    .values(
        expires_at=now() + bindparam("seconds", type_=Double()),
        renewed_at=now(),
        step=_STEP,
        step_at=case((Lease.step == _STEP, Lease.step_at), else_=now()),
        time_spent=func.coalesce(bindparam("new_times", type_=Lease.time_spent.type), Lease.time_spent),
    )
    .returning(
        select(Run.intent).where(Run.id == _OF_RUN).scalar_subquery(),
        select(Run.requests).where(Run.id == _OF_RUN).scalar_subquery(),
    )
)
"""Made once: half of the processor time of a beat was that of putting it together."""


def _of_attempt(run_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return Lease.run_id == run_id, Lease.attempt == attempt


def end_without_result(
    session: Session, run: Run, outcome: str, detail: str, restart_budget: int, *, counts: bool
) -> RunState:
    """End the attempt of a locked run that did not finish it, and decide what becomes of the run.

    A user's request outlives the attempt: a run that was to be cancelled is CANCELLED, one that was to be stopped is
    SUCCEEDED with its newest checkpoint, one that was to pause is PAUSED. Otherwise the run is RECOVERING, until
    `restart_budget` restarts without progress are spent; `counts` says whether this one is charged. One whose slot is
    lent has had no game, so that nothing was interrupted: it is QUEUED, where it was.
    """
    intent = run.intent
    lent = (
        run.state == RunState.STARTING
        and intent == Intent.RELEASE
        and not counts
        and session.scalar(select(is_lent(run.id, run.attempt)))
    )
    end_attempt(session, run, outcome, detail)
    if intent == Intent.CANCEL:
        return finish(session, run, RunState.CANCELLED, StopReason.USER, detail)
    if lent:
        note = Note(EVENT_OF[RunState.QUEUED], "The run has lent its slot, and waits again, in its former place.")
        move(session, run, RunState.QUEUED, note, queued_at=Run.queued_at, intent=None)
        return RunState.QUEUED
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


def is_lent(run_id: str, attempt: int) -> ColumnElement[bool]:
    """Return an SQL condition: the slot of an attempt was lent."""
    return exists().where(Event.run_id == run_id, Event.attempt == attempt, Event.type == SLOT_LENT)


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
    """Close the present attempt of a locked run: no lease, no simulators, an idle worker. Rows keep its last beat."""
    values: dict[str, Any] = {"ended_at": now(), "lease_expires_at": None}
    values |= {"outcome": storable(outcome, 32), "detail": storable(detail or "")}
    columns = (Lease.step, Lease.renewed_at, Lease.time_spent)
    ended = delete(Lease).where(*_of_attempt(run.id, run.attempt)).returning(*columns)
    last = session.execute(ended, execution_options=UNTRACKED).one_or_none()
    if last is not None:
        spent = None if last.time_spent is None else TimeSpent.unpack(last.time_spent)
        values |= {"step": last.step, "heartbeat_at": last.renewed_at}
        values |= {} if spent is None else {"time_spent": asdict(spent)}
        step = update(Run).where(Run.id == run.id).values(stored_step=last.step)
        session.execute(step, execution_options=UNTRACKED)
    worker_id = session.scalar(
        update(Attempt)
        .where(Attempt.run_id == run.id, Attempt.number == run.attempt, Attempt.ended_at.is_(None))
        .values(values)
        .returning(Attempt.worker_id)
    )
    idle: dict[str, Any] = {"run_id": None}
    if last is not None:
        idle["stored_heartbeat_at"] = later(Worker.stored_heartbeat_at, literal(last.renewed_at, Timestamp))
    freed = update(Worker).where(Worker.id == worker_id, Worker.run_id == run.id).values(idle)
    session.execute(freed, execution_options=UNTRACKED)
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
