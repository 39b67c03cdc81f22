"""The collectors of a run over HTTP."""

from typing import Any

from fastapi import APIRouter

from ludus import schemas
from server.kit.errors import RunNotFound
from server.kit.http.errors import PageTokenInvalid, problems
from server.kit.http.listing import ListPage, PagingDep
from server.kit.http.parameters import RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep
from server.runs.repository import RunRepository
from server.simulators.collectors.repository import CollectorRepository

router = APIRouter(prefix="/v1/runs/{run:name}/collectors", tags=["simulators"])


@router.get(
    "",
    response_model=list_of("CollectorList", schemas.Collector, "collectors", ListPage),
    responses=problems(RunNotFound, PageTokenInvalid),
)
def list_collectors(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, Any]:
    """List the collectors of a run's live attempt: those of its worker, and edge collectors beside the games."""
    with database.read() as session:
        found = CollectorRepository(session).of_run(RunRepository(session).without_config(run))
        return paging.answer("collectors", [resource(schemas.Collector, None, **each) for each in found])
