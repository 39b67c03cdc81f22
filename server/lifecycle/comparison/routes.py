"""Several runs side by side over HTTP: the keys in which their configurations differ, and their newest numbers."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from ludus.config.problems import join_path
from ludus.schemas import DifferingKey, RunComparison
from server.kit.errors import InvalidQuery, RunNotFound
from server.kit.http.auth import named_in_query
from server.kit.http.errors import problems
from server.kit.http.fields import Name
from server.kit.http.services import ServicesDep
from server.lifecycle.routes import MetricsDep, listed
from server.metrics.repository import MetricRepository
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs:compare", tags=["runs"])

MAX_RUNS: Final = 200


@router.get("", responses=problems(RunNotFound, InvalidQuery), openapi_extra=named_in_query("run", "runs"))
def compare_runs(
    runs: Annotated[
        list[Name],
        Query(min_length=1, max_length=MAX_RUNS, description="Ids or names of runs; repeated."),
    ],
    metrics: MetricsDep,
    services: ServicesDep,
) -> RunComparison:
    """Compare runs: the keys of their configurations that differ, and the numbers of `metrics`."""
    with services.database.read() as session:
        repository = RunRepository(session)
        ids = repository.ids_of(runs)
        found = repository.named(ids)
        configs = {run_id: dict(_leaves(config)) for run_id, config in repository.configs(ids).items()}
        return RunComparison(
            runs=tuple(listed(session, services, [found[each] for each in ids], metrics.wanted)),
            differing=tuple(_differing([configs[each] for each in ids])),
            metric_keys=tuple(MetricRepository(session).keys(ids)),
        )


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each leaf. Lists are leaves: their order counts."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, (*path, key))
    else:
        yield join_path(path), value


def _differing(configs: list[dict[str, Any]]) -> Iterator[DifferingKey]:
    for path in sorted({path for config in configs for path in config}):
        values = tuple(config.get(path) for config in configs)
        if any(value != values[0] or type(value) is not type(values[0]) for value in values):
            yield DifferingKey(path=path, values=values)
