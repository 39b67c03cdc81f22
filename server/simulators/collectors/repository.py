"""The collectors of a run's live attempt, as the database knows them."""

from typing import Any

from sqlalchemy import func, select

from server.kit.db.repository import Repository
from server.runs.models import Attempt, Run
from server.simulators.models import Simulator
from server.simulators.repository import CONNECTED


class CollectorRepository(Repository):
    """Reads collectors."""

    def of_run(self, run: Run) -> list[dict[str, Any]]:
        """Return the values of the live attempt's collectors, local ones first; none without such an attempt."""
        attempt = self._session.get(Attempt, (run.id, run.attempt))
        if attempt is None or attempt.ended_at is not None:
            return []
        local = [
            {"kind": "local", "index": each["index"], "address": each["address"]}
            for each in attempt.endpoints
            if not each.get("edge")
        ]
        edge = [{"kind": "edge", **each} for each in attempt.edge_collectors or []]
        query = select(Simulator.collector, func.count()).where(
            Simulator.run_id == run.id, Simulator.attempt == attempt.number, Simulator.state == CONNECTED
        )
        serving = {row[0]: row[1] for row in self._session.execute(query.group_by(Simulator.collector))}
        return [{**each, "simulators": serving.get(each["index"], 0)} for each in (*local, *edge)]
