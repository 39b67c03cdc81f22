"""Reads the queue by demand, from waiting runs of all projects and live slots."""

from server.kit.db.repository import Repository
from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand
from server.runs.scheduling.queue import QueuedDemand, queue_by_demand
from server.runs.scheduling.repository import WaitingRuns
from server.workers.repository import WorkerRepository


class QueueRepository(Repository):
    """Reads the queue. Its session has the rows of all projects."""

    def read(
        self, policy: SchedulingSettings, silent_seconds: float, asked: Demand | None = None
    ) -> list[QueuedDemand]:
        """Return the queue by demand. A worker without a heartbeat for `silent_seconds` does not count."""
        runs = WaitingRuns(self._session)
        slots = WorkerRepository(self._session).slots(silent_seconds)
        return queue_by_demand(runs.groups(), runs.running(), slots, policy, runs.clock(), asked)
