"""Amendments of runs in the database, and the writes of a trainer that applies them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ForeignKey, Integer, func, select, update
from sqlalchemy.orm import Mapped, mapped_column

from ludus.config.problems import show
from ludus.config.run import RunConfig
from server.kit.db.base import CLUSTERED, Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.runs.amendments.refs import AmendmentRef
from server.runs.attempts.repository import AttemptFence
from server.runs.events.repository import Note
from server.runs.models import Run


class Amendment(Base):
    """One change of a run's configuration, of one or more keys. Rows stay: they are the history of `runs.config`."""

    __tablename__ = "amendments"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    changes: Mapped[list[Any]] = mapped_column(Json)
    """`[{"path": "behaviors.Walker.max_steps", "old": 500000, "new": 800000}]`."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED


class AmendedRun(Base):
    """A run whose configuration was changed: `runs.config` is the present one."""

    __tablename__ = "amended_runs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    original: Mapped[dict[str, Any]] = mapped_column(Json)
    """The configuration that the run was created with."""
    applied: Mapped[int] = mapped_column(Integer)
    """Number of the newest amendment that a trainer has carried out; those behind it are pending."""
    updated_at: Mapped[float] = mapped_column(Timestamp)


class AmendmentRepository(Repository):
    """Amendments, and the runs that have some."""

    def of_run(self, run_id: str) -> AmendedRun | None:
        """Return how a changed run was configured at first, and how far its trainer is; None if nothing was changed."""
        return self._session.get(AmendedRun, run_id, populate_existing=True)

    def original(self, run: Run) -> dict[str, Any]:
        """Return the resolved configuration that a run was created with."""
        amended = self.of_run(run.id)
        return run.config if amended is None else amended.original

    def list(self, run_id: str, after: int = 0) -> Sequence[Amendment]:
        """Return a run's amendments with a number above `after`, in their order."""
        query = select(Amendment).where(Amendment.run_id == run_id, Amendment.seq > after)
        return self._session.scalars(query.order_by(Amendment.seq)).all()

    def refs(self, run_id: str, after: int = 0) -> tuple[AmendmentRef, ...]:
        """Return the same as values."""
        return tuple(AmendmentRef(amendment.seq, tuple(amendment.changes)) for amendment in self.list(run_id, after))

    def add(self, run: Run, changes: Iterable[Mapping[str, Any]], config: RunConfig) -> Amendment:
        """Append an amendment to a locked run, and make `config` its present configuration."""
        newest = select(func.max(Amendment.seq)).where(Amendment.run_id == run.id)
        amendment = Amendment(
            run_id=run.id,
            seq=(self._session.scalar(newest) or 0) + 1,
            changes=[dict(change) for change in changes],
            created_at=now(),
        )
        if self.of_run(run.id) is None:
            self._session.add(AmendedRun(run_id=run.id, original=dict(run.config), applied=0, updated_at=now()))
        self.save(amendment)
        present = {"config": config.model_dump(mode="json"), "max_steps": config.max_steps}
        self._session.execute(update(Run).where(Run.id == run.id).values(**present))
        self._session.refresh(run, ["config"])
        return amendment

    def applied(self, run_id: str, seq: int) -> None:
        """Record up to which amendment a trainer has come."""
        self._session.execute(
            update(AmendedRun).where(AmendedRun.run_id == run_id).values(applied=seq, updated_at=now())
        )


class AmendmentWriter:
    """Reads amendments, and notes which of them the trainer has applied."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def after(self, seq: int) -> tuple[AmendmentRef, ...]:
        """Return the amendments behind `seq`. Not fenced: amendments never change."""
        with self._fence.database.read() as session:
            return AmendmentRepository(session).refs(self._fence.run_id, seq)

    def applied(self, seq: int, changes: Sequence[Mapping[str, Any]], step: int) -> None:
        """Record that the trainer applies an amendment from agent step `step` of all behaviors on. Raises LeaseLost."""
        with self._fence.write() as (session, run):
            AmendmentRepository(session).applied(run.id, seq)
            words = ", ".join(
                f"{change['path']} from {show(change['old'])} to {show(change['new'])}" for change in changes
            )
            data = {"seq": seq, "step": step, "changes": [dict(each) for each in changes]}
            note = Note("hyperparameters_changed", f"Changed {words} at step {step}.", data=data)
            self._fence.record(session, note)
