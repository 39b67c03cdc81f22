"""Metrics of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from ludus.client.transport import Resource, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Metric, Series

FRAME: Final = ("run_id", "behavior", "key", "step", "time", "value", "minimum", "maximum", "count", "smoothed")
"""Columns of a DataFrame of series."""


class CurveOptions(TypedDict, total=False):
    """Further parameters of series. One that is None has the server's default."""

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

    def frame(
        self,
        runs: Sequence[str],
        keys: Sequence[str],
        behavior: str | None = None,
        points: int = 500,
        **curve: Unpack[CurveOptions],
    ) -> Any:
        """Return metrics of several runs over time as a `pandas.DataFrame`, with a row for each entry of each series.

        The columns are those of the Parquet file (run_id, behavior, key, step, time, value), then minimum, maximum and
        count of the points behind an entry, of which each series has at most `points`, and smoothed. Raises
        ModuleNotFoundError where pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415  an optional library, so that the return type is Any
        except ModuleNotFoundError as error:
            message = "a DataFrame needs pandas: pip install pandas (`series` and `compare` need nothing)"
            raise ModuleNotFoundError(message, name=error.name) from None
        found = self.compare(runs, keys, behavior, points, common_steps=False, **curve)
        columns: dict[str, list[Any]] = {name: [] for name in FRAME}
        for series in found:
            for name, value in (("run_id", series.run_id), ("behavior", series.behavior), ("key", series.key)):
                columns[name] += [value] * len(series.steps)
            for name, values in zip(FRAME[3:], _columns_of(series), strict=True):
                columns[name] += values
        frame = pd.DataFrame(columns)
        frame["time"] = pd.to_datetime(frame["time"], utc=True)
        return frame

    def download(self, run: str, target: AnyPath) -> Path:
        """Download all metrics of a run as a Parquet file to `target` and return it; pandas and polars read it.

        It has a row for each point: run_id, attempt, behavior, key, step, time and value. The download restarts if the
        run records new points meanwhile. Those of a run that it continues are in that run's own file.
        """
        return self._transport.download(f"/v1/runs/{segment(run)}/metrics.parquet", "metrics.parquet", target)


def _columns_of(series: Series) -> tuple[Sequence[Any], ...]:
    """Return the columns of a series in the order of `FRAME`."""
    smoothed = series.smoothed or [None] * len(series.steps)
    return series.steps, series.times, series.values, series.minima, series.maxima, series.counts, smoothed


def _path(run: str) -> str:
    return f"/v1/runs/{segment(run)}/metrics"
