"""Deleting old checkpoints at once, or seeing what would be deleted."""

from fastapi import APIRouter, Response

from server.app.services import CommandDep, ServicesDep
from server.checkpoints.retention.repository import Doomed, Limits, RetentionRepository
from server.checkpoints.retention.schemas import Pruned, PrunedCheckpoint, PruneWrite
from server.kit.db.database import Session
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer

router = APIRouter(prefix="/v1", tags=["checkpoints"])


@router.post(
    "/checkpoints:prune",
    response_model=Pruned,
    responses=problems(UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    openapi_extra=declare_json(PruneWrite),
)
def prune_checkpoints(body: BodyDep, services: ServicesDep, command: CommandDep) -> Response:
    """Delete checkpoints of runs that are too old or too much. The newest, best, pinned and used ones are spared."""
    wanted = body.read(PruneWrite, {})
    settings = services.settings.storage
    limits = Limits(
        settings.retention_seconds if wanted.older_than_seconds is None else wanted.older_than_seconds,
        settings.retention_bytes if wanted.max_bytes is None else wanted.max_bytes,
    )
    if wanted.dry_run:
        with services.database.read() as session:
            return command.preview(_pruned(RetentionRepository(session).plan(limits), dry_run=True))

    def prune(session: Session) -> Answer:
        retention = RetentionRepository(session)
        doomed = retention.plan(limits)
        gone = set(retention.retire_all(doomed))
        return Answer(200, _pruned([each for each in doomed if each.checkpoint.id in gone], dry_run=False))

    return command.run(prune)


def _pruned(doomed: list[Doomed], *, dry_run: bool) -> Pruned:
    checkpoints = [
        PrunedCheckpoint.model_validate(
            {
                "id": each.checkpoint.id,
                "run_id": each.checkpoint.run_id,
                "step": each.checkpoint.step,
                "size": each.checkpoint.size,
                "created_at": each.checkpoint.created_at,
                "rule": each.rule,
            }
        )
        for each in doomed
    ]
    return Pruned(dry_run=dry_run, checkpoints=checkpoints, bytes=sum(each.size for each in checkpoints))
