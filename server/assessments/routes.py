"""Results of runs that evaluate policies."""

from fastapi import APIRouter

from ludus import schemas
from server.assessments.repository import AssessmentRepository
from server.checkpoints.repository import CheckpointRepository
from server.kit.errors import AssessmentNotFound, RunNotFound
from server.kit.http.errors import problems
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import DatabaseDep
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/result", tags=["assessments"])


@router.get("", responses=problems(RunNotFound, AssessmentNotFound))
def get_result(run: RunKey, database: DatabaseDep) -> schemas.Assessment:
    """Return the state of a `match` or `evaluate` run; after its end, the verdict."""
    with database.read() as session:
        assessment = AssessmentRepository(session).get(RunRepository(session).id_of(run))
        named = (assessment.result.get(role) for role in ("candidate", "champion", "checkpoint"))
        runs = CheckpointRepository(session).runs_of([checkpoint for checkpoint in named if checkpoint is not None])
        return resource(schemas.Assessment, assessment, checkpoint_runs=runs)
