"""Amendments of runs in the database."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, update

from ludus.config.run import RunConfig
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.runs.amendments.models import AmendedRun, Amendment
from server.runs.amendments.refs import AmendmentRef
from server.runs.models import Run


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
        return tuple(AmendmentRef(each.seq, tuple(each.changes)) for each in self.list(run_id, after))

    def add(self, run: Run, changes: Iterable[Mapping[str, Any]], config: RunConfig) -> Amendment:
        """Append an amendment to a locked run, and make `config` its present configuration."""
        newest = select(func.max(Amendment.seq)).where(Amendment.run_id == run.id)
        amendment = Amendment(
            run_id=run.id,
            seq=(self._session.scalar(newest) or 0) + 1,
            changes=[dict(each) for each in changes],
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
