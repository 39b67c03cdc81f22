"""Environment parameters of runs in the database."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ForeignKey, Integer, String, func, select
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import CLUSTERED, Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.runs.attempts.repository import AttemptFence


class RunParameters(Base):
    """The newest report of a run's trainer about its environment parameters."""

    __tablename__ = "run_parameters"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    parameters: Mapped[list[Any]] = mapped_column(Json)
    """The fields of `ludus.schemas.EnvironmentParameter` of each."""
    edit: Mapped[int] = mapped_column(Integer)
    """Number of the newest edit that it has carried out; those behind it are pending."""
    updated_at: Mapped[float] = mapped_column(Timestamp)


class ParameterEdit(Base):
    """A request for another lesson or value. Rows stay: a trainer that resumes from before an edit does it again."""

    __tablename__ = "parameter_edits"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts 1, 2, 3, ... per run."""
    parameter: Mapped[str] = mapped_column(String(200))
    change: Mapped[dict[str, Any]] = mapped_column(Json)
    """`lesson`: its number from 1, `value`: as configurations write it; either or both."""
    created_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = CLUSTERED


class ParameterRepository(Repository):
    """Environment parameters of runs: their reports and edits."""

    def of_run(self, run_id: str) -> RunParameters | None:
        """Return what the run's newest trainer last said; None before the first has."""
        return self._session.get(RunParameters, run_id)

    def store_report(self, run_id: str, parameters: Sequence[Mapping[str, Any]], edit: int) -> None:
        """Store what a trainer reports."""
        plain = [dict(parameter) for parameter in parameters]
        self._session.merge(RunParameters(run_id=run_id, parameters=plain, edit=edit, updated_at=now()))

    def edits(self, run_id: str, after: int = 0) -> Sequence[ParameterEdit]:
        """Return a run's edits with a number above `after`, in their order."""
        query = select(ParameterEdit).where(ParameterEdit.run_id == run_id, ParameterEdit.seq > after)
        return self._session.scalars(query.order_by(ParameterEdit.seq)).all()

    def add(self, run_id: str, parameter: str, change: Mapping[str, Any]) -> ParameterEdit:
        """Append an edit to a locked run."""
        seq = self.newest(run_id) + 1
        return self.save(
            ParameterEdit(run_id=run_id, seq=seq, parameter=parameter, change=dict(change), created_at=now())
        )

    def newest(self, run_id: str) -> int:
        """Return the number of a run's newest edit; 0 without any."""
        return self._session.scalar(select(func.max(ParameterEdit.seq)).where(ParameterEdit.run_id == run_id)) or 0


class ParameterWriter:
    """Reads edits of environment parameters, and publishes where the parameters are."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def edits(self, after: int) -> list[tuple[int, str, dict[str, Any]]]:
        """Return number, parameter and change of the edits behind `after`. Not fenced: edits never change."""
        with self._fence.database.read() as session:
            edits = ParameterRepository(session).edits(self._fence.run_id, after)
            return [(edit.seq, edit.parameter, edit.change) for edit in edits]

    def publish(self, parameters: Sequence[Mapping[str, Any]], edit: int) -> None:
        """Store where the parameters are, and the number of the last edit that the trainer has applied.

        Raises LeaseLost.
        """
        with self._fence.write() as (session, run):
            ParameterRepository(session).store_report(run.id, parameters, edit)
