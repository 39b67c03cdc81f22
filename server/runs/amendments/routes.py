"""A run's configuration while it goes on: change it, and see how it was changed."""

from fastapi import APIRouter, Response

from server.app.services import CommandDep, DatabaseDep, ServicesDep
from server.kit.errors import InvalidEdit, RunEnded, RunNotFound, TooManyTags
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import RunKey
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.runs.amendments.schemas import AmendmentRead, AmendmentsRead, RunUpdate
from server.runs.amendments.service import AmendmentService
from server.runs.routes import read_run
from server.runs.schemas import RunRead

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.patch(
    "/{run:name}",
    response_model=RunRead,
    responses=problems(
        RunNotFound, RunEnded, InvalidEdit, TooManyTags, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS
    ),
    openapi_extra=declare_json(RunUpdate),
)
def update_run(run: RunKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Change hyperparameters, `max_steps` or environment parameters of a run that has not ended; or name and tags of
    any run.

    All changes are made, or none. The answer's `config` has them. A live run goes on with them from its next update,
    others when they go on; the event `hyperparameters_changed` says so, with old and new.
    """
    wanted = body.read(RunUpdate, {})
    return command.run(
        lambda session: Answer(200, read_run(session, services, AmendmentService(session).update(run, wanted)))
    )


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
