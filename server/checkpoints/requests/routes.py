"""Requests for a checkpoint now."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from ludus import schemas
from server.checkpoints.errors import CheckpointRequestNotFound
from server.checkpoints.requests.repository import CheckpointRequestRepository
from server.checkpoints.requests.service import CheckpointRequestService
from server.kit.db.database import Session
from server.kit.errors import RunEnded, RunNotFound
from server.kit.http.errors import problems
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep
from server.runs.errors import RunNotRunning
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["runs"])

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of a request.")]


@router.post(
    ":checkpoint",
    status_code=202,
    response_model=schemas.CheckpointRequest,
    responses=problems(RunNotFound, RunEnded, RunNotRunning, *COMMAND_PROBLEMS),
)
def checkpoint_run(run: RunKey, command: CommandDep) -> Response:
    """Request a checkpoint of a running run now; the run continues.

    The answer is the request. It is answered with the checkpoint's id within seconds, or when the update that is under
    way has ended; the event `checkpoint_saved` has the request's number. Asked again meanwhile, it is the same request.
    """
    return command.run(lambda session: _asked(session, run))


@router.get(
    "/checkpoint_requests/{number}",
    responses=problems(RunNotFound, CheckpointRequestNotFound),
)
def get_checkpoint_request(run: RunKey, number: Number, database: DatabaseDep) -> schemas.CheckpointRequest:
    """Return a request for a checkpoint, with the checkpoint's id once it is stored."""
    with database.read() as session:
        return resource(
            schemas.CheckpointRequest,
            CheckpointRequestRepository(session).get(RunRepository(session).id_of(run), number),
        )


def _asked(session: Session, run: str) -> Answer:
    request = resource(schemas.CheckpointRequest, CheckpointRequestService(session).ask(run))
    return Answer(202, request, f"/v1/runs/{request.run_id}/checkpoint_requests/{request.seq}")
