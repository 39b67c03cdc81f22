"""The findings of runs in the database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update

from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.runs.events.repository import UNTRACKED
from server.runs.models import Run


class HealthRepository(Repository):
    """Findings of runs, each `ludus.schemas.Finding` as a JSON object."""

    def of_run(self, run_id: str) -> Sequence[dict[str, Any]]:
        """Return the findings of a run."""
        return self._session.scalar(select(Run.health).where(Run.id == run_id)) or ()

    def store(self, run_id: str, findings: Sequence[dict[str, Any]]) -> None:
        """Replace the findings of a run."""
        values = {"health": [*findings] or None, "stored_updated_at": now()}
        self._session.execute(update(Run).where(Run.id == run_id).values(**values), execution_options=UNTRACKED)
