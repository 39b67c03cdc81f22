"""The changes of a run's configuration."""

from fastapi import APIRouter

from ludus import schemas
from server.kit.errors import RunNotFound
from server.kit.http.errors import PageTokenInvalid, problems
from server.kit.http.listing import PagingDep
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import DatabaseDep
from server.runs.amendments.repository import AmendmentRepository
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/{run:name}/amendments", responses=problems(RunNotFound, PageTokenInvalid))
def list_amendments(run: RunKey, database: DatabaseDep, paging: PagingDep) -> schemas.Amendments:
    """Return the configuration that a run was created with, the present one, and the changes between them."""
    with database.read() as session:
        repository, found = AmendmentRepository(session), RunRepository(session).get(run)
        amended = repository.of_run(found.id)
        applied = 0 if amended is None else amended.applied
        return schemas.Amendments(
            original_config=repository.original(found),
            config=found.config,
            **paging.answer(
                "amendments",
                tuple(
                    resource(schemas.Amendment, each, applied=each.seq <= applied) for each in repository.list(found.id)
                ),
            ),
        )
