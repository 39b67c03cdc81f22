"""Results of runs that judge policies."""

from fastapi import APIRouter

from server.app.services import DatabaseDep
from server.assessments.repository import AssessmentRepository
from server.assessments.schemas import AssessmentRead
from server.kit.errors import AssessmentNotFound, RunNotFound
from server.kit.http.errors import problems
from server.kit.http.fields import RunKey
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/result", tags=["assessments"])


@router.get("", response_model=AssessmentRead, responses=problems(RunNotFound, AssessmentNotFound))
def get_result(run: RunKey, database: DatabaseDep) -> AssessmentRead:
    """Return where a `match` or `evaluate` run stands; when it has ended, its verdict."""
    with database.read() as session:
        found = AssessmentRepository(session).get(RunRepository(session).id_of(run))
        return AssessmentRead.model_validate(found)
