"""Deleting old checkpoints at once, or listing them."""

from fastapi import APIRouter, Response
from pydantic import Field

from ludus import schemas
from server.checkpoints.retention.repository import ExpiredCheckpoint, Limits, RetentionRepository, by_run
from server.kit.db.database import Session
from server.kit.http.bodies import BodyDep
from server.kit.http.fields import Write
from server.kit.http.idempotency import Answer, json_command
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, ServicesDep

router = APIRouter(prefix="/v1", tags=["checkpoints"])


class PruneWrite(Write):
    """Limits by which checkpoints are deleted."""

    older_than_seconds: float | None = Field(default=None, gt=0)
    """Age at which checkpoints are deleted. Default: the server's `retention_seconds`."""
    max_bytes: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """Size of all checkpoints together beyond which the oldest are deleted. Default: the server's `retention_bytes`."""
    dry_run: bool = False
    """Only say what would be deleted."""


@router.post("/checkpoints:prune", response_model=schemas.Pruned, **json_command(PruneWrite))
def prune_checkpoints(body: BodyDep, services: ServicesDep, command: CommandDep) -> Response:
    """Delete checkpoints of runs by age and total size. The newest, best, pinned and used ones are kept."""
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
        expired = retention.plan(limits)
        deleted = {checkpoint_id for of_run in by_run(expired) for checkpoint_id in retention.retire(of_run)}
        return Answer(200, _pruned([item for item in expired if item.checkpoint.id in deleted], dry_run=False))

    return command.run(prune)


def _pruned(expired: list[ExpiredCheckpoint], *, dry_run: bool) -> schemas.Pruned:
    checkpoints = tuple(resource(schemas.PrunedCheckpoint, item.checkpoint, rule=item.rule) for item in expired)
    return schemas.Pruned(dry_run=dry_run, checkpoints=checkpoints, bytes=sum(item.size for item in checkpoints))
