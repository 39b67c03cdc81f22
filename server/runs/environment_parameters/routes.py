"""Environment parameters of a run: where their lessons are, and changes while it goes on."""

from fastapi import APIRouter, Response

from server.app.services import CommandDep, DatabaseDep
from server.kit.db.database import Session
from server.kit.errors import InvalidEdit, RunEnded, RunNotFound
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import RunKey
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.runs.environment_parameters.schemas import (
    EnvironmentParameterRead,
    EnvironmentParametersRead,
    EnvironmentParametersUpdate,
    ParameterEditRead,
)
from server.runs.environment_parameters.service import ParameterService

router = APIRouter(prefix="/v1/runs/{run:name}/environment_parameters", tags=["runs"])


@router.get("", response_model=EnvironmentParametersRead, responses=problems(RunNotFound))
def get_environment_parameters(run: RunKey, database: DatabaseDep) -> EnvironmentParametersRead:
    """Return where each environment parameter of a run is in its lessons, and what it waits for."""
    with database.read() as session:
        return _read(session, run)


@router.patch(
    "",
    response_model=EnvironmentParametersRead,
    responses=problems(RunNotFound, RunEnded, InvalidEdit, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    openapi_extra=declare_json(EnvironmentParametersUpdate),
)
def update_environment_parameters(run: RunKey, body: BodyDep, command: CommandDep) -> Response:
    """Ask for another lesson or another value of some parameters, while the run goes on.

    All changes are asked for, or none. They are `pending` until the trainer has carried them out, which it says by the
    event `lesson_changed` or `parameter_changed`.
    """
    wanted = body.read(EnvironmentParametersUpdate, {})
    return command.run(lambda session: _edited(session, run, wanted))


def _edited(session: Session, run: str, wanted: EnvironmentParametersUpdate) -> Answer:
    found = ParameterService(session).edit(run, wanted.parameters)
    return Answer(200, _read(session, found.id))


def _read(session: Session, run: str) -> EnvironmentParametersRead:
    statuses, pending = ParameterService(session).read(run)
    return EnvironmentParametersRead(
        parameters=[EnvironmentParameterRead.model_validate(each) for each in statuses],
        pending=[ParameterEditRead.model_validate(each) for each in pending],
    )
