"""Metrics of runs: newest values, and history thinned on the server."""

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import SEEK_END, BufferedIOBase
from tempfile import TemporaryFile
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Query, Response
from numpy.typing import NDArray

from ludus import schemas
from ludus.validation import NO_NUL
from server.checkpoints.repository import MAX_PREDECESSORS, CheckpointRepository
from server.kit.errors import InvalidQuery, RunNotFound
from server.kit.http.auth import named_in_query
from server.kit.http.downloads import DOWNLOAD, Content, DownloadRequestDep, send
from server.kit.http.errors import PageTokenInvalid, RangeNotSatisfiable, problems
from server.kit.http.fields import Name
from server.kit.http.listing import ListPage, PagingDep
from server.kit.http.parameters import MetricKey, RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep, ServicesDep
from server.metrics import parquet
from server.metrics.points import NO_LIMIT, Series, Window
from server.metrics.reader import MetricReader
from server.metrics.repository import MetricRepository, MetricRetentionRepository
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/metrics", tags=["metrics"])
files = APIRouter(prefix="/v1/runs/{run:name}", tags=["metrics"])
many = APIRouter(prefix="/v1/series", tags=["metrics"])

MAX_POINTS = 5000
MAX_RUNS = 200
MAX_SERIES = 200
"""Most series that are read for one answer, those of predecessors among them."""

SERIES = list_of("SeriesList", schemas.Series, "series")
Behavior = Annotated[
    Annotated[str, NO_NUL] | None, Query(max_length=200, description="Only of this behavior; empty = of the run.")
]
PointCount = Annotated[int, Query(ge=1, le=MAX_POINTS, description="Maximum number of entries per series.")]


Smoothing = Annotated[
    float,
    Query(
        ge=0,
        lt=1,
        description="Weight of the past in `smoothed`, the exponential moving average of the whole history without its "
        "bias to the start; 0 = `smoothed` is null.",
    ),
]


def window_of(
    from_step: Annotated[int, Query(ge=-1, le=NO_LIMIT, description="Only points from this step on.")] = -1,
    to_step: Annotated[int, Query(ge=-1, le=NO_LIMIT, description="Only points up to this step.")] = NO_LIMIT,
) -> Window:
    """Return the window of a request."""
    return Window(from_step, to_step)


WindowDep = Annotated[Window, Depends(window_of)]


class Histories:
    """The histories of the runs of a request."""

    def __init__(
        self,
        services: ServicesDep,
        with_predecessors: Annotated[
            bool,
            Query(
                description="The series of a run that continues another one (`continues`) begins with the points of "
                "that one, up to the checkpoint that it goes on from, and so on with the runs before: those of the "
                f"last {MAX_PREDECESSORS}. `false`: only its own."
            ),
        ] = False,
    ) -> None:
        self._services = services
        self.with_predecessors = with_predecessors

    def of(self, runs: Sequence[str]) -> tuple[Sequence[str], MetricReader]:
        """Return the ids of runs, and a reader of their histories. Raises RunNotFound."""
        with self._services.database.read() as session:
            run_ids = RunRepository(session).ids_of(runs)
            lineages = CheckpointRepository(session).lineages(run_ids) if self.with_predecessors else {}
        return run_ids, MetricReader(self._services.database, self._services.artifacts, lineages)


HistoriesDep = Annotated[Histories, Depends()]


@router.get(
    "",
    response_model=list_of("MetricList", schemas.Metric, "metrics", ListPage),
    responses=problems(RunNotFound, PageTokenInvalid),
)
def latest_metrics(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, object]:
    """List the newest value of every metric."""
    with database.read() as session:
        metrics = MetricRepository(session).latest(RunRepository(session).id_of(run))
        return paging.answer("metrics", [resource(schemas.Metric, metric) for metric in metrics])


@router.get("/series", response_model=SERIES, responses=problems(RunNotFound))
def metric_series(
    run: RunKey,
    histories: HistoriesDep,
    key: Annotated[MetricKey, Query(description="The metric, or a short name of one: `reward`, `length`, ....")],
    window: WindowDep,
    behavior: Behavior = None,
    points: PointCount = 500,
    smoothing: Smoothing = 0.0,
    after_step: Annotated[
        int | None,
        Query(
            ge=-1,
            le=NO_LIMIT,
            description="Only points after this step: the first `points` of them as recorded, instead of all of them "
            "thinned. For reading a whole history part by part, or following it.",
        ),
    ] = None,
) -> Response:
    """Return a metric over time, one series per behavior, in at most `points` entries each.

    A metric that the run has not recorded has no series.
    """
    if after_step is not None:
        window = Window(max(window.first, after_step + 1), window.last)
    run_ids, reader = histories.of([run])
    return _answer(
        reader.series(run_ids, [key], behavior, points, window=window, thinned=after_step is None, smoothing=smoothing)
    )


@many.get(
    "",
    response_model=SERIES,
    responses=problems(RunNotFound, InvalidQuery),
    openapi_extra=named_in_query("run", "runs"),
)
def series_of_runs(
    runs: Annotated[
        list[Name],
        Query(min_length=1, max_length=MAX_RUNS, description="Ids or names of runs; repeated."),
    ],
    histories: HistoriesDep,
    window: WindowDep,
    keys: Annotated[
        list[MetricKey],
        Query(min_length=1, max_length=MAX_SERIES, description="Metrics, or short names of some; repeated."),
    ],
    behavior: Behavior = None,
    points: PointCount = 300,
    smoothing: Smoothing = 0.0,
    common_steps: Annotated[
        bool,
        Query(
            description="Entry i of every series covers the same steps, up to `steps[i]`; a series that has no point "
            "there has a null. For means and bands of several runs."
        ),
    ] = False,
) -> Response:
    """Return metrics of several runs over time: one series for each run, behavior and key that has points.

    A run without a metric has no series of it. More than 200 series, each of a predecessor counted: ask for fewer runs
    or keys.
    """
    run_ids, reader = histories.of(runs)
    count = reader.count(run_ids, keys, behavior)
    if count > MAX_SERIES:
        among = ", those of their predecessors among them" if histories.with_predecessors else ""
        problem = f"they have {count} series{among}, more than {MAX_SERIES}; ask for fewer runs or metrics"
        raise InvalidQuery("runs", problem)
    return _answer(
        reader.series(run_ids, keys, behavior, points, window=window, common_steps=common_steps, smoothing=smoothing)
    )


@files.get(
    "/metrics.parquet",
    response_class=Response,
    responses={**DOWNLOAD, **problems(RunNotFound, RangeNotSatisfiable)},
)
def download_metrics(run: RunKey, services: ServicesDep, request: DownloadRequestDep) -> Response:
    """Download all metrics of a run as a Parquet file: a row for each point, as recorded.

    Columns: run_id, attempt, behavior (empty for metrics of the run as a whole), key, step, time (UTC) and value.
    Points that a later attempt superseded are left out. The file of a run has another `ETag` when it has new points.
    It has the points of this run alone: a run that `continues` another one begins after its checkpoint.
    """
    with services.database.read() as session:
        run_id = RunRepository(session).id_of(run)
        archives = MetricRetentionRepository(session).archives([run_id])
    name = f"{run_id}.parquet"
    for archive in archives:
        return send(
            replace(Content.stored(services.artifacts, archive.path, archive.size, archive.sha256), name=name), request
        )
    with ExitStack() as unsent:
        file = unsent.enter_context(TemporaryFile())
        parquet.write(file, run_id, MetricReader(services.database, services.artifacts).metrics(run_id))
        size = file.seek(0, SEEK_END)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()

        def opened(start: int) -> BufferedIOBase:
            file.seek(start)
            unsent.pop_all()  # sending it closes it
            return file

        return send(Content(name, size, digest, opened), request)


def _answer(all_series: Sequence[Series]) -> Response:
    """Write series as JSON. They are columns already: checking each number as a field would take most of the time."""
    columns = [
        {
            "run_id": series.run_id,
            "behavior": series.behavior,
            "key": series.key,
            "total": series.total,
            "steps": series.steps.tolist(),
            "times": _times(series.times),
            "counts": series.counts.tolist(),
            "values": _finite(series.values),
            "minima": _finite(series.minima),
            "maxima": _finite(series.maxima),
            "smoothed": None if series.smoothed is None else _finite(series.smoothed),
        }
        for series in all_series
    ]
    return Response(json.dumps({"series": columns}, separators=(",", ":")), media_type="application/json")


def _times(seconds: NDArray[np.float64]) -> list[str | None]:
    """Return times in RFC 3339, and None for NaN."""
    texts = np.datetime_as_string(np.round(seconds * 1e6).astype("datetime64[us]"), timezone="UTC").tolist()
    return [None if text == "NaT" else text for text in texts]


def _finite(values: NDArray[np.float64]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
