"""A run's configuration while it goes on: change it, and see how it was changed."""

from fastapi import APIRouter, Response

from server.amendments.schemas import AmendmentRead, AmendmentsRead, RunUpdate
from server.amendments.service import AmendmentService
from server.db.database import Session
from server.errors import InvalidEdit, RunEnded, RunNotFound
from server.http.bodies import BodyDep, declare_json
from server.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.http.fields import RunKey
from server.http.idempotency import COMMAND_PROBLEMS, Answer
from server.http.services import CommandDep, DatabaseDep
from server.runs.schemas import RunRead

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.patch(
    "/{run:name}",
    response_model=RunRead,
    responses=problems(RunNotFound, RunEnded, InvalidEdit, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    openapi_extra=declare_json(RunUpdate),
)
def update_run(run: RunKey, body: BodyDep, command: CommandDep) -> Response:
    """Change hyperparameters, `max_steps` or environment parameters of a run that has not ended.

    All changes are made, or none. The answer's `config` has them. A live run goes on with them from its next update,
    others when they go on; the event `hyperparameters_changed` says so, with old and new.
    """
    wanted = body.read(RunUpdate, {})
    return command.run(lambda session: _changed(session, run, wanted))


@router.get("/{run:name}/amendments", response_model=AmendmentsRead, responses=problems(RunNotFound))
def list_amendments(run: RunKey, database: DatabaseDep) -> AmendmentsRead:
    """Return the configuration that a run was created with, the present one, and the changes between them."""
    with database.read() as session:
        found, amended, amendments = AmendmentService(session).read(run)
        applied = 0 if amended is None else amended.applied
        return AmendmentsRead(
            original_config=found.config if amended is None else amended.original,
            config=found.config,
            amendments=[
                AmendmentRead.model_validate(
                    {
                        "seq": each.seq,
                        "changes": each.changes,
                        "applied": each.seq <= applied,
                        "created_at": each.created_at,
                    }
                )
                for each in amendments
            ],
        )


def _changed(session: Session, run: str, wanted: RunUpdate) -> Answer:
    return Answer(200, RunRead.model_validate(AmendmentService(session).change(run, wanted)))
