"""The health of a run, over HTTP."""

from fastapi import APIRouter

from ludus import schemas
from server.kit.errors import RunNotFound
from server.kit.http.errors import problems
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import DatabaseDep
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/health", tags=["runs"])


@router.get("", responses=problems(RunNotFound))
def get_health(run: RunKey, database: DatabaseDep) -> schemas.Health:
    """Return the findings about a run's learning: each with its number, its cause and one remedy."""
    with database.read() as session:
        findings = RunRepository(session).get(run).health
    return resource(schemas.Health, None, findings=findings or ())
