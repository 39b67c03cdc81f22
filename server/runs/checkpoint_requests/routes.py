"""A checkpoint now: ask a running run for one, and look whether it is there."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from server.app.services import CommandDep, DatabaseDep
from server.kit.db.database import Session
from server.kit.errors import CheckpointRequestNotFound, RunNotFound, RunNotRunning
from server.kit.http.errors import problems
from server.kit.http.fields import RunKey
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.runs.checkpoint_requests.schemas import CheckpointRequestRead
from server.runs.checkpoint_requests.service import CheckpointRequestService

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["runs"])

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of a request.")]


@router.post(
    ":checkpoint",
    status_code=202,
    response_model=CheckpointRequestRead,
    responses=problems(RunNotFound, RunNotRunning, *COMMAND_PROBLEMS),
)
def checkpoint_run(run: RunKey, command: CommandDep) -> Response:
    """Ask a running run for a checkpoint now; it goes on.

    The answer is the request. It is answered with the checkpoint's id within seconds, or when the update that is under
    way has ended; the event `checkpoint_saved` has the request's number. Asked again meanwhile, it is the same request.
    """
    return command.run(lambda session: _asked(session, run))


@router.get(
    "/checkpoint_requests/{number}",
    response_model=CheckpointRequestRead,
    responses=problems(RunNotFound, CheckpointRequestNotFound),
)
def get_checkpoint_request(run: RunKey, number: Number, database: DatabaseDep) -> CheckpointRequestRead:
    """Return a request for a checkpoint, with the checkpoint's id once it is stored."""
    with database.read() as session:
        return CheckpointRequestRead.model_validate(CheckpointRequestService(session).get(run, number))


def _asked(session: Session, run: str) -> Answer:
    request = CheckpointRequestRead.model_validate(CheckpointRequestService(session).ask(run))
    return Answer(202, request, f"/v1/runs/{request.run_id}/checkpoint_requests/{request.seq}")
