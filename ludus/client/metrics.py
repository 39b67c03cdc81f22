"""Metrics of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from ludus.client.transport import Resource, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Metric, Series


class CurveOptions(TypedDict, total=False):
    """Further parameters of series, None as if left out."""

    from_step: int | None
    """Only points from this step on."""
    to_step: int | None
    """Only points up to this step."""
    smoothing: float | None
    """The weight of the past in `Series.smoothed`, 0 to below 1."""
    with_predecessors: bool | None
    """Whether the series of a run that continues others begins with their points, up to the checkpoints that were
    taken over."""


class Metrics(Resource):
    """Requests about metrics."""

    def list(self, run: str) -> Sequence[Metric]:
        """Return the newest value of every metric of a run."""
        return [*self._transport.pages(Metric, _path(run))]

    def series(
        self,
        run: str,
        key: str,
        behavior: str | None = None,
        points: int = 500,
        after_step: int | None = None,
        **curve: Unpack[CurveOptions],
    ) -> Sequence[Series]:
        """Return a metric over time, one series per behavior, down-sampled by the server to at most `points` each.

        With `after_step` nothing is down-sampled: the result is the first `points` (at most 5000) points beyond it.
        """
        parameters = without_none(key=key, points=points, behavior=behavior, after_step=after_step, **curve)
        return self._transport.read_all(Series, self._transport.document(f"{_path(run)}/series", parameters), "series")

    def compare(
        self,
        runs: Sequence[str],
        keys: Sequence[str],
        behavior: str | None = None,
        points: int = 300,
        common_steps: bool = True,
        **curve: Unpack[CurveOptions],
    ) -> Sequence[Series]:
        """Return metrics of several runs over time, at most 200 series, each down-sampled to at most `points`.

        With `common_steps`, entry i of every series covers the same steps, and is None in those that have no point
        there. A run that has not recorded a metric has no series of it.
        """
        parameters = without_none(
            runs=runs, keys=keys, behavior=behavior, points=points, common_steps=common_steps, **curve
        )
        return self._transport.read_all(Series, self._transport.document("/v1/series", parameters), "series")

    def download(self, run: str, target: AnyPath) -> Path:
        """Download all metrics of a run as a Parquet file to `target` and return it; pandas and polars read it.

        It has a row for each point: run_id, attempt, behavior, key, step, time and value. The download restarts if the
        run records new points meanwhile. Those of a run that it continues are in that run's own file.
        """
        return self._transport.download(f"/v1/runs/{segment(run)}/metrics.parquet", "metrics.parquet", target)


def _path(run: str) -> str:
    return f"/v1/runs/{segment(run)}/metrics"
