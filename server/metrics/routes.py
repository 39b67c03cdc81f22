"""Metrics of a run: newest values, and history thinned on the server."""

import math
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ludus import schemas
from server.kit.errors import MetricNotFound, RunNotFound
from server.kit.http.errors import problems
from server.kit.http.fields import TEXT, MetricKey, RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep
from server.metrics.repository import MetricRepository
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/metrics", tags=["metrics"])

MAX_POINTS = 5000


@router.get("", response_model=list_of("MetricList", schemas.Metric, "metrics"), responses=problems(RunNotFound))
def latest_metrics(run: RunKey, database: DatabaseDep) -> dict[str, Any]:
    """Return the newest value of every metric."""
    with database.read() as session:
        found = MetricRepository(session).latest(RunRepository(session).id_of(run))
        return {"metrics": [resource(schemas.Metric, metric) for metric in found]}


@router.get(
    "/series",
    response_model=list_of("SeriesList", schemas.Series, "series"),
    responses=problems(RunNotFound, MetricNotFound),
)
def metric_series(
    run: RunKey,
    database: DatabaseDep,
    key: MetricKey,
    behavior: Annotated[
        str | None, Query(max_length=200, pattern=TEXT, description="Only of this behavior; empty = of the run.")
    ] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS, description="Maximum number of entries per series.")] = 500,
    after_step: Annotated[
        int | None,
        Query(
            ge=-1,
            le=2**62,
            description="Only points after this step: the first `points` of them as recorded, instead of all of them "
            "thinned. For reading a whole history part by part, or following it.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return a metric over time, one series per behavior, in at most `points` entries each."""
    with database.read() as session:
        metrics = MetricRepository(session)
        run_id = RunRepository(session).id_of(run)
        if behavior is None:
            found = metrics.all_series(run_id, key, points, after_step)
        else:
            found = [metrics.series(run_id, behavior, key, points, after_step)]
    columns = ("steps", "times", "counts")
    return {
        "series": [
            resource(
                schemas.Series,
                each,
                **{name: getattr(each, name).tolist() for name in columns},
                **{
                    name: [value if math.isfinite(value) else None for value in getattr(each, name).tolist()]
                    for name in ("values", "minima", "maxima")
                },
            )
            for each in found
        ]
    }
