"""The fenced transaction of an attempt: the only way in which an attempt writes.

Every write carries the attempt's number. It locks the run's row first, and is refused with LeaseLost when the run has a
newer attempt or this one was ended, so a worker that was taken for dead cannot disturb its successor. A lease that ran
out may still be renewed until the reaper has taken the run: lateness does no harm before that.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import update
from sqlalchemy.orm import Session

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.errors import LeaseLost, RunNotFound
from server.kit.states import LEASED
from server.runs.events.repository import Note, lock_run, record, record_if
from server.runs.models import Attempt, Run


class Renewed(NamedTuple):
    """A renewal of the lease has ended: `ok`, or with the code of an error."""

    seconds: float
    outcome: str


class Listening(NamedTuple):
    """Simulators can connect."""


class SimulatorChanged(NamedTuple):
    """A simulator has `connected` or `plays`, or its session has ended, or was refused, with a code."""

    session_id: str
    change: str


class Recorded(NamedTuple):
    """An event of the trainer has its number."""

    type: str


class CheckpointCopied(NamedTuple):
    """The files of a checkpoint are in the artifact store. Told on the thread that copies."""

    path: str
    seconds: float


class CheckpointSaved(NamedTuple):
    """A checkpoint was entered; its files have `size` bytes."""

    path: str
    reason: str
    step: int
    size: int


class Moved(NamedTuple):
    """The attempt has moved its run."""

    to: RunState
    reason: str | None
    detail: str | None


class Released(NamedTuple):
    """The attempt has ended and left the run to another worker."""

    outcome: str
    detail: str


Observed = Renewed | Listening | SimulatorChanged | Recorded | CheckpointCopied | CheckpointSaved | Moved | Released
Observer = Callable[[Observed], None]
"""Called after the commit of a write: `worker.host.telemetry` counts, `worker.host.tracing` sends spans. It must
neither raise nor wait."""


class AttemptFence:
    """Transactions of one attempt. The writers of all features share one."""

    def __init__(self, database: Database, run_id: str, number: int, observers: Sequence[Observer] = ()) -> None:
        self.database = database
        self.run_id = run_id
        self.number = number
        self._observers = observers

    def notify(self, observed: Observed) -> None:
        """Tell the observers of the attempt something, after the commit."""
        for observer in self._observers:
            observer(observed)

    @contextmanager
    def write(self) -> Iterator[tuple[Session, Run]]:
        """Open a transaction with the run locked and this attempt's right to it proven. Raises LeaseLost."""
        with self.database.write() as session:
            run = lock_run(session, self.run_id)
            self._prove(run)
            yield session, run

    @contextmanager
    def tell(self, note: Note) -> Iterator[Session]:
        """Open a transaction that records an event, with statements that return nothing. Raises LeaseLost, RunNotFound.

        What many do at once, for one run: the UPDATE that numbers the event is the lock and the proof, and all that
        follows goes with the COMMIT, so that the run is locked for no longer than one message takes.
        """
        is_held = (Run.attempt == self.number, Run.state.in_(LEASED))
        with self.database.write(gathers=True) as session:
            if record_if(session, self.run_id, note, *is_held, attempt=self.number) is None:
                lock_run(session, self.run_id)  # it may not exist any more
                raise LeaseLost(self.run_id, self.number)
            yield session

    def check(self) -> None:
        """Check that this attempt holds the run. Raises LeaseLost, RunNotFound."""
        with self.database.read() as session:
            run = session.get(Run, self.run_id)
            if run is None:
                raise RunNotFound(self.run_id)
            self._prove(run)

    def _prove(self, run: Run) -> None:
        if run.attempt != self.number or run.state not in LEASED:  # a move to any other state ends the attempt
            raise LeaseLost(self.run_id, self.number)

    def set(self, session: Session, **values: object) -> None:
        """Set columns of the attempt."""
        same = (Attempt.run_id == self.run_id, Attempt.number == self.number)
        session.execute(update(Attempt).where(*same).values(**values))

    def record(self, session: Session, note: Note, **changes: object) -> None:
        """Append an event of the attempt to the run, with changes of the run's columns."""
        record(session, self.run_id, note, attempt=self.number, **changes)
