"""Metrics of runs."""

from collections.abc import Sequence

from ludus.client.transport import Resource, segment, without_none
from ludus.schemas import Metric, Series


class Metrics(Resource):
    """Requests about metrics."""

    def list(self, run: str) -> Sequence[Metric]:
        """Return the newest value of every metric of a run."""
        return self._transport.read_all(Metric, self._transport.document(_path(run)), "metrics")

    def series(
        self, run: str, key: str, behavior: str | None = None, points: int = 500, after_step: int | None = None
    ) -> Sequence[Series]:
        """Return a metric over time, one series per behavior, down-sampled by the server to at most `points` each.

        With `after_step` nothing is down-sampled: the result is the first `points` (at most 5000) points beyond it.
        """
        parameters = without_none(key=key, points=points, behavior=behavior, after_step=after_step)
        return self._transport.read_all(Series, self._transport.document(f"{_path(run)}/series", parameters), "series")


def _path(run: str) -> str:
    return f"/v1/runs/{segment(run)}/metrics"
