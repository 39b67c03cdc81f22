"""Events of runs and the one way to change a run's state.

An event's sequence number is taken with `UPDATE runs SET event_seq = event_seq + 1 ... RETURNING`, in the transaction
that inserts it. The update locks the run's row until the commit, so the numbers of a run become visible in their order
and a reader who has seen `seq` never meets a smaller one later.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session, defer

from ludus.schemas.states import RunState, StopReason
from server.kit.db.clock import now
from server.kit.db.database import actor_of
from server.kit.db.repository import Repository
from server.kit.db.texts import storable, storable_json
from server.kit.errors import IllegalTransition, RunNotFound
from server.kit.states import TERMINAL, TRANSITIONS
from server.runs.events.tailer import Head
from server.runs.models import BEHIND, Event, Run

UNTRACKED = {"synchronize_session": False}
"""The statement's effect on objects in the session is read back where it matters, not guessed."""


@dataclass(frozen=True)
class Note:
    """An event before it has its number."""

    type: str
    """Past tense, snake case: `checkpoint_saved`."""
    message: str
    """A sentence for people."""
    level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    data: Mapping[str, Any] = field(default_factory=dict)


class EventRepository(Repository):
    """Reads events."""

    def page(self, run_id: str, after: int = 0, limit: int = 100) -> Sequence[Event]:
        """Return at most `limit` events with a sequence number above `after`, in order."""
        query = select(Event).where(Event.run_id == run_id, Event.seq > after).order_by(Event.seq).limit(limit)
        return self._session.scalars(query).all()

    def heads(self, run_ids: Collection[str]) -> dict[str, Head]:
        """Return the newest sequence number and the state of each of these runs that exists, in one small query."""
        rows = self._session.execute(select(Run.id, Run.event_seq, Run.state).where(Run.id.in_(run_ids)))
        return {run_id: Head(seq, RunState(state)) for run_id, seq, state in rows}

    def count(self, run_id: str) -> int:
        """Return how many events the run has."""
        return self._session.scalar(select(func.count()).where(Event.run_id == run_id)) or 0


@overload
def lock_run(session: Session, run_id: str) -> Run: ...
@overload
def lock_run(session: Session, run_id: str, *, patient: Literal[False]) -> Run | None: ...
def lock_run(session: Session, run_id: str, *, patient: bool = True) -> Run | None:
    """Load a run (without what is rarely asked for) and keep others from changing it until the commit.

    One that another transaction has locked is waited for, or, without patience, answered with None. Raises RunNotFound.
    """
    query = select(Run).where(Run.id == run_id).options(*map(defer, BEHIND)).with_for_update(skip_locked=not patient)
    run = session.scalars(query, execution_options={"populate_existing": True}).one_or_none()
    if run is None and patient:
        raise RunNotFound(run_id)
    return run


def record(session: Session, run_id: str, note: Note, *, attempt: int | None = None, **changes: Any) -> int:
    """Append an event to a run, with changes of the run's columns in the same statement; return its number."""
    statement = update(Run).where(Run.id == run_id).values(event_seq=Run.event_seq + 1, updated_at=now(), **changes)
    seq: int | None = session.scalar(statement.returning(Run.event_seq), execution_options=UNTRACKED)
    if seq is None:
        raise RunNotFound(run_id)
    _insert(session, run_id, seq, attempt, note)
    return seq


def move(
    session: Session,
    run: Run,
    to: RunState,
    note: Note,
    *,
    reason: StopReason | None = None,
    detail: str | None = None,
    **changes: Any,
) -> int:
    """Move a run from the state and attempt number in which the caller saw it to another state; return the event's
    number.

    The race: two parties see RUNNING; one ends the run, the other pauses it. Each move is one conditional UPDATE on
    what its party saw, so the second changes nothing and raises IllegalTransition with the state that it found instead.
    `changes` are further columns. The event belongs to the attempt that results.
    """
    seen = RunState(run.state)
    if to not in TRANSITIONS[seen]:
        raise IllegalTransition(run.id, seen, to)
    values = {**_columns(to, reason, storable(detail) if detail else None), **changes}
    statement = (
        update(Run)
        .where(Run.id == run.id, Run.state == seen, Run.attempt == run.attempt)
        .values(state=to, event_seq=Run.event_seq + 1, updated_at=now(), **values)
        .returning(Run.event_seq)
    )
    seq: int | None = session.scalar(statement, execution_options=UNTRACKED)
    if seq is None:
        raise IllegalTransition(run.id, lock_run(session, run.id).state, to)
    data = {"from": seen, "to": to, **({"reason": reason} if reason else {}), **note.data}
    session.refresh(run)
    _insert(session, run.id, seq, run.attempt, Note(note.type, note.message, note.level, data))
    return seq


def _columns(to: RunState, reason: StopReason | None, detail: str | None) -> dict[str, Any]:
    """Return what else changes with the state."""
    if to in TERMINAL:
        return {"stop_reason": reason, "stop_detail": detail, "intent": None, "finished_at": now(), "waits_for": None}
    if to is RunState.PAUSED:
        why = {"stop_reason": reason, "stop_detail": detail} if reason is not None else {}
        return {"intent": None, **why}
    if to in {RunState.PAUSING, RunState.STOPPING} and reason is not None:
        return {"stop_reason": reason, "stop_detail": detail}
    if to is RunState.STARTING:
        return {"waits_for": None}
    if to is RunState.RUNNING:
        return {"stop_reason": None, "stop_detail": None, "started_at": func.coalesce(Run.started_at, now())}
    if to is RunState.QUEUED:
        return {"stop_reason": None, "stop_detail": None, "queued_at": now()}
    return {}


def _insert(session: Session, run_id: str, seq: int, attempt: int | None, note: Note) -> None:
    """Insert an event. One that a request caused says `by` whom: the name of its principal."""
    actor = actor_of(session)
    by = {} if actor is None else {"by": actor}
    session.execute(
        insert(Event).values(
            run_id=run_id,
            seq=seq,
            at=now(),
            attempt=attempt or None,
            type=note.type,
            level=note.level,
            message=storable(note.message),
            data=storable_json({**note.data, **by}),
        )
    )
