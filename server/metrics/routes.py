"""Metrics of a run: newest values, and history thinned on the server."""

import math
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query

from server.app.services import DatabaseDep
from server.kit.errors import MetricNotFound, RunNotFound
from server.kit.http.errors import problems
from server.kit.http.fields import TEXT, MetricKey, RunKey
from server.metrics.points import Series
from server.metrics.repository import MetricRepository
from server.metrics.schemas import MetricList, MetricRead, SeriesList, SeriesRead
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/metrics", tags=["metrics"])

MAX_POINTS = 5000


@router.get("", response_model=MetricList, responses=problems(RunNotFound))
def latest_metrics(run: RunKey, database: DatabaseDep) -> MetricList:
    """Return the newest value of every metric."""
    with database.read() as session:
        found = MetricRepository(session).latest(RunRepository(session).id_of(run))
        return MetricList(metrics=[MetricRead.model_validate(metric) for metric in found])


@router.get("/series", response_model=SeriesList, responses=problems(RunNotFound, MetricNotFound))
def metric_series(
    run: RunKey,
    database: DatabaseDep,
    key: MetricKey,
    behavior: Annotated[
        str | None, Query(max_length=200, pattern=TEXT, description="Only of this behavior; empty = of the run.")
    ] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS, description="Most entries per series.")] = 500,
    after_step: Annotated[
        int | None,
        Query(
            ge=-1,
            le=2**62,
            description="Only what lies beyond this step, and its first `points` points as they were recorded instead "
            "of all thinned: to read a whole history piece by piece, or to keep up with it.",
        ),
    ] = None,
) -> SeriesList:
    """Return a metric over time, one series per behavior, in at most `points` entries each."""
    with database.read() as session:
        metrics = MetricRepository(session)
        run_id = RunRepository(session).id_of(run)
        if behavior is None:
            found = metrics.all_series(run_id, key, points, after_step)
        else:
            found = [metrics.series(run_id, behavior, key, points, after_step)]
    return SeriesList(series=[_series(each) for each in found])


def _series(series: Series) -> SeriesRead:
    return SeriesRead(
        behavior=series.behavior,
        key=series.key,
        total=series.total,
        steps=series.steps.tolist(),
        times=series.times.tolist(),
        values=_finite(series.values.tolist()),
        minima=_finite(series.minima.tolist()),
        maxima=_finite(series.maxima.tolist()),
        counts=series.counts.tolist(),
    )


def _finite(values: Iterable[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
