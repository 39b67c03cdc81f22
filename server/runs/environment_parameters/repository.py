"""Environment parameters of runs in the database."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select

from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.runs.environment_parameters.models import ParameterEdit, RunParameters


class ParameterRepository(Repository):
    """Environment parameters of runs: their reports and edits."""

    def of_run(self, run_id: str) -> RunParameters | None:
        """Return what the run's newest trainer last said; None before the first has."""
        return self._session.get(RunParameters, run_id)

    def store_report(self, run_id: str, parameters: Sequence[Mapping[str, Any]], edit: int) -> None:
        """Store what a trainer reports."""
        plain = [dict(each) for each in parameters]
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
