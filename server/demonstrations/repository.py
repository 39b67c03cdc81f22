"""Reads and keeps the rows of demonstrations, and of their use by runs."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import delete, select

from server.demonstrations.models import Demonstration, RunDemonstration
from server.demonstrations.refs import DemonstrationNotFound, DemonstrationRef
from server.kit.db.repository import Repository
from server.kit.states import TERMINAL
from server.runs.models import Run


class DemonstrationRepository(Repository):
    """Demonstrations, seen through one session."""

    def get(self, demonstration_id: str) -> Demonstration:
        """Return one demonstration. Raises DemonstrationNotFound."""
        demonstration = self._session.get(Demonstration, demonstration_id)
        if demonstration is None:
            raise DemonstrationNotFound(demonstration_id)
        return demonstration

    def existing(self, ids: Collection[str], *, lock: bool) -> dict[str, Demonstration]:
        """Return the existing ones of these demonstrations, by id; with `lock` they stay until the commit."""
        query = select(Demonstration).where(Demonstration.id.in_(ids)).order_by(Demonstration.id)
        rows = self._session.scalars(query.with_for_update(read=True) if lock else query)
        return {row.id: row for row in rows}

    def delete(self, demonstration: Demonstration) -> None:
        """Remove a row, with the notes of its use."""
        uses = delete(RunDemonstration).where(RunDemonstration.demonstration_id == demonstration.id)
        self._session.execute(uses)
        self._session.delete(demonstration)
        self._session.flush()

    def use(self, run_id: str, ids: Iterable[str]) -> None:
        """Record that a run uses demonstrations."""
        self._session.add_all(RunDemonstration(run_id=run_id, demonstration_id=id_) for id_ in sorted(set(ids)))
        self._session.flush()

    def of_run(self, run_id: str) -> Sequence[Demonstration]:
        """Return the demonstrations that a run uses."""
        query = select(Demonstration).join(RunDemonstration).where(RunDemonstration.run_id == run_id)
        return self._session.scalars(query.order_by(Demonstration.id)).all()

    def live_user(self, demonstration_id: str) -> str | None:
        """Return the id of a run that uses a demonstration and has not ended, None if there is none."""
        query = (
            select(Run.id)
            .join(RunDemonstration, RunDemonstration.run_id == Run.id)
            .where(RunDemonstration.demonstration_id == demonstration_id, Run.state.not_in(TERMINAL))
        )
        return self._session.scalar(query.limit(1))


def ref(demonstration: Demonstration) -> DemonstrationRef:
    """Return a demonstration as a value that outlives the session."""
    return DemonstrationRef(demonstration.id, demonstration.name, demonstration.path, demonstration.sha256)
