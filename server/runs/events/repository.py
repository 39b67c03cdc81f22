"""Events of runs and the one way to change a run's state.

An event's sequence number is taken with `UPDATE runs SET event_seq = event_seq + 1 ... RETURNING`, in the transaction
that inserts it. The update locks the run's row until the commit, so the numbers of a run become visible in their order
and a reader who has seen `seq` never meets a smaller one later.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, overload

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.orm import Session, defer

from ludus.schemas.states import RunState, StopReason
from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.database import actor_of, after_commit, tracer_of
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject, storable, storable_json
from server.kit.errors import IllegalTransition, RunNotFound
from server.kit.states import EVENT_OF, TERMINAL, TRANSITIONS
from server.kit.tracing import Attributes
from server.runs.events.tailer import Head
from server.runs.models import BEHIND, Event, Run

UNTRACKED = {"synchronize_session": False}
"""The statement's effect on objects in the session is read back where it matters, not guessed."""
PAGE_SIZE = 200
"""Events that are read at once."""
LASTING = frozenset({"run_created", *EVENT_OF.values()})
"""Types of the events that tell of a run's state. Retention keeps them as long as the run."""


@dataclass(frozen=True)
class Note:
    """An event before it has its number."""

    type: str
    """Past tense, snake case: `checkpoint_saved`."""
    message: str
    """A sentence for people."""
    level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class RunHead:
    """A run as it is with its newest event."""

    run_id: str
    project: str
    name: str
    state: RunState
    seq: int
    """Number of the event."""


_HEAD = (Run.id, Run.project, Run.name, Run.state, Run.event_seq)


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

    def changed(self, since: float) -> tuple[float, Sequence[RunHead]]:
        """Return the database's time, and the runs that changed at or after `since` on its clock, in one query."""
        clock = select(now().label("at")).subquery()
        query = select(clock.c.at, *_HEAD).outerjoin_from(clock, Run, Run.stored_updated_at >= since)
        rows = self._session.execute(query).all()
        return rows[0].at, [_head(*row[1:]) for row in rows if row.id is not None]

    def with_events_since(self, since: float, limit: int) -> Sequence[RunHead]:
        """Return at most `limit` runs whose newest event has a time at or after `since`."""
        newest = (Event.run_id == Run.id) & (Event.seq == Run.event_seq)
        query = select(*_HEAD).join(Event, newest).where(Run.stored_updated_at >= since, Event.at >= since)
        return [_head(*row) for row in self._session.execute(query.order_by(Run.stored_updated_at).limit(limit))]

    def last_before(self, run_id: str, at: float) -> int:
        """Return the number of a run's newest event before a time; 0 if there is none."""
        query = select(Event.seq).where(Event.run_id == run_id, Event.at < at).order_by(Event.seq.desc()).limit(1)
        return self._session.scalar(query) or 0

    def through(self, head: RunHead, after: int) -> Iterator[Event]:
        """Iterate over a run's events with a number above `after`, up to the head's; none if it was deleted since."""
        while after < head.seq:
            events = [event for event in self.page(head.run_id, after, PAGE_SIZE) if event.seq <= head.seq]
            if not events:
                return
            yield from events
            after = events[-1].seq

    def forget(self, run_ids: Collection[str], days: float, limit: int) -> int:
        """Delete at most `limit` routine events of these runs that are so many days old; return how many.

        A run's newest event stays: its number is the run's `event_seq`, by which readers find it.
        """
        query = (
            select(Event.run_id, Event.seq)
            .join(Run, (Run.id == Event.run_id) & (Event.seq < Run.event_seq))
            .where(Event.run_id.in_(run_ids), Event.at < now() - days * DAY_SECONDS)
            .where(Event.level.in_(("debug", "info")), Event.type.not_in(LASTING))
        )
        of_run = defaultdict[str, list[int]](list)
        for run_id, seq in self._session.execute(query.limit(limit)):
            of_run[run_id].append(seq)
        for run_id, old in of_run.items():
            for numbers in parts(old):
                self._session.execute(delete(Event).where(Event.run_id == run_id, Event.seq.in_(numbers)))
        return sum(map(len, of_run.values()))

    def count(self, run_id: str) -> int:
        """Return how many events the run has."""
        return self._session.scalar(select(func.count()).where(Event.run_id == run_id)) or 0


def _head(run_id: str, project: str, name: str, state: str, seq: int) -> RunHead:
    return RunHead(run_id, project, name, RunState(state), seq)


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


def record(session: Session, run_id: str, note: Note, *, attempt: int | None = None, **changes: object) -> int:
    """Append an event to a run, with changes of the run's columns in the same statement; return its number."""
    seq = record_if(session, run_id, note, attempt=attempt, **changes)
    if seq is None:
        raise RunNotFound(run_id)
    return seq


def record_if(
    session: Session,
    run_id: str,
    note: Note,
    *conditions: ColumnElement[bool],
    attempt: int | None = None,
    **changes: object,
) -> int | None:
    """Do what `record` does if conditions on the run hold; else, or if there is no such run, nothing: None."""
    values = {"event_seq": Run.event_seq + 1, "stored_updated_at": now(), **changes}
    statement = update(Run).where(Run.id == run_id, *conditions).values(values)
    seq: int | None = session.scalar(statement.returning(Run.event_seq), execution_options=UNTRACKED)
    if seq is not None:
        _insert(session, run_id, seq, attempt, note)
    return seq


def ask(session: Session, run_id: str, note: Note, *, attempt: int | None = None) -> int:
    """Record a request to the trainer of a locked run: the next heartbeat has the supervisor read it."""
    return record(session, run_id, note, attempt=attempt, requests=Run.requests + 1)


def move(
    session: Session,
    run: Run,
    to: RunState,
    note: Note,
    *,
    reason: StopReason | None = None,
    detail: str | None = None,
    locked: bool = False,
    attempt: int | None = None,
    **changes: object,
) -> int:
    """Move a run from the state and attempt number in which the caller saw it to another state; return the event's
    number.

    The race: two parties see RUNNING; one ends the run, the other pauses it. Each move is one conditional UPDATE on
    what its party saw, so the second changes nothing and raises IllegalTransition with the state that it found instead.
    A move that begins an `attempt` says its number: the event belongs to it. `changes` are further columns. A caller
    that has the run `locked` since it saw it saves the read-back: its object stays as it was.
    """
    state = RunState(run.state)
    if to not in TRANSITIONS[state]:
        raise IllegalTransition(run.id, state, to)
    seen, attempt = run.attempt, run.attempt if attempt is None else attempt
    values = {**_columns(to, reason, storable(detail) if detail else None), **changes, "attempt": attempt}
    statement = (
        update(Run)
        .where(Run.id == run.id, Run.state == state, Run.attempt == seen)
        .values(state=to, event_seq=Run.event_seq + 1, stored_updated_at=now(), **values)
    )
    if locked:
        session.execute(statement, execution_options=UNTRACKED)
        seq = run.event_seq + 1
    else:
        options = {"populate_existing": True, **UNTRACKED}
        refreshed = session.scalars(statement.returning(Run), execution_options=options)
        if refreshed.one_or_none() is None:
            raise IllegalTransition(run.id, lock_run(session, run.id).state, to)
        seq = run.event_seq
    data = {"from": state, "to": to, **({"reason": reason} if reason else {}), **note.data}
    _insert(session, run.id, seq, attempt, Note(note.type, note.message, note.level, data))
    if to in TERMINAL and (tracer := tracer_of(session)) is not None:
        facts: Attributes = {
            "ludus.run.name": run.name,
            "ludus.run.kind": run.kind,
            "ludus.run.state": to,
            "ludus.run.step": run.step,
            "ludus.run.stop_reason": reason or "",
        }
        failed = detail or reason if to is RunState.FAILED else None
        ended = partial(tracer.of_run, run.id, "run", run.created_at, run.finished_at, failed=failed, attributes=facts)
        after_commit(session, ended)
    return seq


def _columns(to: RunState, reason: StopReason | None, detail: str | None) -> JsonObject:
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
    event = {
        "run_id": run_id,
        "seq": seq,
        "attempt": attempt or None,
        "type": note.type,
        "level": note.level,
        "message": storable(note.message),
        "data": storable_json({**note.data, **by}),
    }
    session.execute(_INSERTED, event)


_INSERTED = insert(Event).values(at=now())
