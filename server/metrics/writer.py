"""The metrics that an attempt writes."""

from collections.abc import Sequence

from server.metrics.points import MetricPoint
from server.metrics.repository import MetricRepository
from server.runs.attempts.repository import AttemptFence


class MetricWriter:
    """Writes metrics of one attempt."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def append(self, points: Sequence[MetricPoint]) -> None:
        """Append points with one statement. Appending the same points twice is safe. Raises LeaseLost, RunNotFound."""
        while points:
            with self._fence.database.write(once=True) as session:
                if MetricRepository(session).append(self._fence.run_id, self._fence.number, points):
                    return
            self._fence.check()  # else an append of the same attempt took the number in the same moment: take the next
