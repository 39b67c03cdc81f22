"""Environment parameters of a run over HTTP: present lessons, and changes."""

from fastapi import APIRouter, Response

from ludus import schemas
from server.kit.db.database import Session
from server.kit.errors import InvalidEdit, RunEnded, RunNotFound
from server.kit.http.bodies import BodyDep
from server.kit.http.errors import problems
from server.kit.http.idempotency import Answer, merge_patch
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import DatabaseDep, EditDep
from server.runs.environment_parameters.requests import EnvironmentParametersUpdate
from server.runs.environment_parameters.service import ParameterService
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/environment_parameters", tags=["runs"])


@router.get("", responses=problems(RunNotFound))
def get_environment_parameters(run: RunKey, database: DatabaseDep) -> schemas.EnvironmentParameters:
    """Return the present lesson of each environment parameter of a run, and its criterion."""
    with database.read() as session:
        return _read(session, run)


@router.patch(
    "",
    response_model=schemas.EnvironmentParameters,
    **merge_patch(EnvironmentParametersUpdate, RunNotFound, RunEnded, InvalidEdit),
)
def update_environment_parameters(run: RunKey, body: BodyDep, command: EditDep) -> Response:
    """Request another lesson or another value of some parameters of a live run.

    All changes are asked for, or none. They are `pending` until the trainer has carried them out, which it says by the
    event `lesson_changed` or `parameter_changed`.
    """
    wanted = body.read(EnvironmentParametersUpdate, {})

    def edit(session: Session) -> Answer:
        RunRepository(session).lock(run)
        command.expects(lambda: _read(session, run))
        found = ParameterService(session).edit(run, wanted.parameters)
        return Answer(200, _read(session, found.id))

    return command.run(edit)


def _read(session: Session, run: str) -> schemas.EnvironmentParameters:
    statuses, pending = ParameterService(session).read(run)
    return schemas.EnvironmentParameters(
        parameters=tuple(resource(schemas.EnvironmentParameter, each) for each in statuses),
        pending=tuple(resource(schemas.ParameterEdit, each) for each in pending),
    )
