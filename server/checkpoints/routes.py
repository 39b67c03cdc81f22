"""Checkpoints of a run, and their files; and checkpoints of other programs, which are uploaded."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response
from fastapi import Path as InPath
from pydantic import Field
from pydantic import Field as ModelField

from ludus import schemas
from ludus.validation import NO_NUL
from server.checkpoints.models import Checkpoint, CheckpointAlias, UploadedCheckpoint
from server.checkpoints.refs import (
    AliasInvalid,
    AliasMoved,
    AliasNotFound,
    CheckpointInUse,
    CheckpointInvalid,
    CheckpointRequestNotFound,
    damage,
)
from server.checkpoints.repository import (
    AliasRepository,
    CheckpointRepository,
    CheckpointRequestRepository,
    UploadedCheckpointRepository,
    ref,
)
from server.checkpoints.retention import ExpiredCheckpoint, Limits, RetentionRepository, by_run
from server.checkpoints.service import AliasService, CheckpointService, request_checkpoint
from server.checkpoints.uploads import inspect, publish
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import (
    ArtifactNotFound,
    CheckpointDeleted,
    CheckpointNotFound,
    NameAmbiguous,
    RunEnded,
    RunNotFound,
    StorageFull,
    StorageRefused,
    StorageUnavailable,
)
from server.kit.http.auth import AuthDep
from server.kit.http.bodies import BodyDep
from server.kit.http.downloads import DOWNLOAD, Content, DownloadRequestDep, send
from server.kit.http.errors import RangeNotSatisfiable, UnsupportedFileType, deleted, problems
from server.kit.http.fields import Name, Text, Write
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer, json_command
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.parameters import CheckpointKey, FileName, RunKey
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep, ServicesDep
from server.kit.http.uploads import FILE_BODY, UploadCommandDep, UploadDep
from server.kit.listing import ListQuery, Page
from server.runs.repository import RunNotRunning, RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/checkpoints", tags=["checkpoints"])
uploads = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"])

CHECKPOINTS = ListForm(
    "checkpoints",
    schemas.Checkpoint,
    CheckpointRepository.COLUMNS,
    orders=("created_at", "step", "score"),
    equality={"reason"},
)
UPLOADED = ListForm(
    "uploaded_checkpoints",
    schemas.UploadedCheckpoint,
    by_name(
        UploadedCheckpoint.name, UploadedCheckpoint.behavior, UploadedCheckpoint.size, UploadedCheckpoint.created_at
    ),
    orders=("created_at", "name", "size"),
    key=UploadedCheckpoint.id,
    items="checkpoints",
)

UploadedKey = Annotated[Name, InPath(max_length=40, description="An uploaded checkpoint's id.")]


class ScoreWrite(Write):
    """A metric of an evaluation."""

    metric: Text = ModelField(
        min_length=1, max_length=200, description="A name for it, as `keep_best.metric` may name it."
    )
    value: float
    behavior: Text = ModelField(default="", max_length=200, description="The behavior; empty for the run as a whole.")


@router.get("", response_model=CHECKPOINTS.page(), responses=problems(RunNotFound, *LIST_PROBLEMS))
def list_checkpoints(
    run: RunKey,
    listing: ListingDep,
    show_deleted: Annotated[bool, Query(description="Include checkpoints whose files retention has removed.")] = False,
) -> dict[str, object]:
    """List a run's checkpoints, newest first. By `score desc` the best is the first; those without one come last."""

    def fetch(session: Session, query: ListQuery) -> Page[schemas.Checkpoint]:
        run_id = RunRepository(session).id_of(run)
        return CheckpointRepository(session).list(run_id, query, deleted=show_deleted).map(_resource)

    return listing.answer(CHECKPOINTS, fetch)


@router.get("/{checkpoint:name}", responses=problems(RunNotFound, CheckpointNotFound))
def get_checkpoint(run: RunKey, checkpoint: CheckpointKey, database: DatabaseDep) -> schemas.Checkpoint:
    """Return one checkpoint; `latest` is the one that the run would be resumed from, `best` has the highest score."""
    with database.read() as session:
        return _resource(_find(session, run, checkpoint))


@router.post(
    "/{checkpoint:name}:pin",
    response_model=schemas.Checkpoint,
    responses=problems(RunNotFound, CheckpointNotFound, CheckpointDeleted, *COMMAND_PROBLEMS),
)
def pin_checkpoint(run: RunKey, checkpoint: CheckpointKey, command: CommandDep) -> Response:
    """Exempt a checkpoint from retention. Pinning it again changes nothing."""
    return command.run(lambda session: _pinned(session, run, checkpoint, pinned=True))


@router.post(
    "/{checkpoint:name}:unpin",
    response_model=schemas.Checkpoint,
    responses=problems(RunNotFound, CheckpointNotFound, CheckpointDeleted, *COMMAND_PROBLEMS),
)
def unpin_checkpoint(run: RunKey, checkpoint: CheckpointKey, command: CommandDep) -> Response:
    """Remove a checkpoint's pin: the retention rules apply again."""
    return command.run(lambda session: _pinned(session, run, checkpoint, pinned=False))


@router.post(
    "/{checkpoint:name}:score",
    response_model=schemas.Checkpoint,
    **json_command(ScoreWrite, RunNotFound, CheckpointNotFound, CheckpointDeleted),
)
def score_checkpoint(run: RunKey, checkpoint: CheckpointKey, body: BodyDep, command: CommandDep) -> Response:
    """Store the score of an evaluation of a checkpoint: a number under a name. `keep_best` may use that name."""
    score = body.read(ScoreWrite, {})

    def enter(session: Session) -> Answer:
        row = _find(session, run, checkpoint)
        scored = CheckpointService(session).score(row.run_id, row.id, score.metric, score.value, score.behavior)
        return Answer(200, _resource(scored))

    return command.run(enter)


@router.post(
    "/{checkpoint:name}:verify",
    response_model=schemas.CheckpointVerified,
    responses=problems(
        RunNotFound, CheckpointNotFound, CheckpointDeleted, StorageUnavailable, StorageRefused, *COMMAND_PROBLEMS
    ),
)
def verify_checkpoint(run: RunKey, checkpoint: CheckpointKey, services: ServicesDep, command: CommandDep) -> Response:
    """Read all files of a checkpoint and compare their SHA-256. One that is damaged is not resumed from any more."""
    with services.database.read() as session:
        stored = ref(_stored(session, run, checkpoint))
        run_id = RunRepository(session).id_of(run)
    problems = damage(services.artifacts, stored)

    def note(session: Session) -> Answer:
        row = CheckpointService(session).verified(run_id, stored.id, problems)
        size = sum(file.size for file in stored.files)
        verified = schemas.CheckpointVerified(
            checkpoint=_resource(row), sound=not problems, problems=tuple(problems), bytes=size
        )
        return Answer(200, verified)

    return command.run(note)


@router.get(
    "/{checkpoint:name}/files/{name:path}",
    response_class=Response,
    responses={
        **DOWNLOAD,
        **problems(RunNotFound, CheckpointNotFound, CheckpointDeleted, ArtifactNotFound, RangeNotSatisfiable),
    },
)
def download_file(
    run: RunKey, checkpoint: CheckpointKey, name: FileName, services: ServicesDep, wanted: DownloadRequestDep
) -> Response:
    """Download one file of a checkpoint, or a part of it."""
    with services.database.read() as session:
        stored = ref(_stored(session, run, checkpoint))
    file = next((file for file in stored.files if file.name == name), None)
    if file is None:
        raise ArtifactNotFound(name, f"The checkpoint has {', '.join(file.name for file in stored.files)}.")
    return send(Content.stored(services.artifacts, f"{stored.path}/{file.name}", file.size, file.sha256), wanted)


@uploads.post(
    "",
    status_code=201,
    response_model=schemas.UploadedCheckpoint,
    responses=problems(UnsupportedFileType, CheckpointInvalid, StorageFull, *COMMAND_PROBLEMS),
    openapi_extra=FILE_BODY,
)
def upload_checkpoint(
    upload: UploadDep,
    command: UploadCommandDep,
    services: ServicesDep,
    name: Annotated[Name | None, Query(description="Name for display; default: its id.")] = None,
    behavior: Annotated[
        Annotated[str, NO_NUL] | None,
        Query(min_length=1, max_length=200, description="The behavior that it was trained for, for people."),
    ] = None,
) -> Response:
    """Store a checkpoint for `initialize_from`: the `checkpoint.pt` of a results folder, ML-Agents' or ours.

    Its form is checked here, its networks when a run begins with it.
    """

    def add(session: Session) -> Answer:
        row = CheckpointService(session).add(stored, name, behavior)
        return Answer(201, resource(schemas.UploadedCheckpoint, row), f"/v1/checkpoints/{row.id}")

    with publish(services.artifacts, upload.path, inspect(upload.path)) as stored:
        return command.run(add)


@uploads.get("", response_model=UPLOADED.page(), responses=problems(*LIST_PROBLEMS))
def list_uploaded_checkpoints(listing: ListingDep) -> dict[str, object]:
    """List uploaded checkpoints, newest first."""
    return listing.answer(UPLOADED)


@uploads.get("/{checkpoint:name}", responses=problems(CheckpointNotFound))
def get_uploaded_checkpoint(checkpoint: UploadedKey, database: DatabaseDep) -> schemas.UploadedCheckpoint:
    """Return one uploaded checkpoint."""
    with database.read() as session:
        return resource(schemas.UploadedCheckpoint, UploadedCheckpointRepository(session).get(checkpoint))


@uploads.delete("/{checkpoint:name}", status_code=204, responses=deleted(CheckpointNotFound, CheckpointInUse))
def delete_uploaded_checkpoint(checkpoint: UploadedKey, services: ServicesDep) -> None:
    """Delete an uploaded checkpoint. Refused while a run that has not ended begins with it.

    The controller removes the file.
    """
    with services.database.write() as session:
        CheckpointService(session).delete(checkpoint)


_NONE_SO_FAR: Final = {
    "latest": "The run has saved none so far, or none that is sound.",
    "best": "No checkpoint of the run has a score yet: the value of `keep_best.metric`, which is "
    "written every `summary_freq` steps, or else the mean return of episodes.",
}


def _resource(row: Checkpoint) -> schemas.Checkpoint:
    scores, models = row.scores or {}, row.models or {}  # earlier releases stored none
    files = [{**file, "model": models.get(file["name"])} for file in row.files]
    return resource(schemas.Checkpoint, row, scores=scores, files=files)


def _find(session: Session, run: str, checkpoint: str) -> Checkpoint:
    run_id = RunRepository(session).id_of(run)
    checkpoints = CheckpointRepository(session)
    match checkpoint:
        case "latest":
            row = checkpoints.newest(run_id)
        case "best":
            row = checkpoints.best(run_id)
        case _:
            return checkpoints.get(run_id, checkpoint)
    if row is None:
        hint = _NONE_SO_FAR[checkpoint]
        takeover = checkpoints.takeovers([run_id]).get(run_id)
        if takeover is not None:
            hint += f" It continues {takeover.predecessor}, which has the checkpoint that it began with."
        raise CheckpointNotFound(checkpoint, hint)
    return row


def _pinned(session: Session, run: str, checkpoint: str, *, pinned: bool) -> Answer:
    row = _find(session, run, checkpoint)
    row = CheckpointService(session).pin(row.run_id, row.id, pinned=pinned)
    return Answer(200, _resource(row))


def _stored(session: Session, run: str, checkpoint: str) -> Checkpoint:
    row = _find(session, run, checkpoint)
    return CheckpointRepository(session).get_stored(row.run_id, row.id)


alias_routes = APIRouter(prefix="/v1/aliases", tags=["aliases"])

ALIASES = ListForm(
    "aliases",
    schemas.Alias,
    by_name(CheckpointAlias.name, CheckpointAlias.checkpoint_id, CheckpointAlias.created_at, CheckpointAlias.moved_at),
    orders=("name", "moved_at", "created_at"),
    ascending=True,
    key=CheckpointAlias.key,
)
MOVES = ListForm(
    "alias_moves",
    schemas.AliasMove,
    AliasRepository.MOVE_COLUMNS,
    orders=("version",),
    items="moves",
)


class AliasPut(Write):
    """The checkpoint that an alias names."""

    checkpoint_id: Name = ModelField(description="A checkpoint of a run.")
    expected: Name | None = ModelField(
        default=None,
        description="Move it only if it stands for this checkpoint now; null: only if there is no such alias yet. Left "
        "out, it is moved whatever it stands for.",
    )


AliasKey = Annotated[Name, Path(description="The alias, as in `champion`.")]


@alias_routes.get("", response_model=ALIASES.page(), responses=problems(*LIST_PROBLEMS))
def list_aliases(listing: ListingDep) -> dict[str, object]:
    """List aliases by name."""
    return listing.answer(ALIASES)


@alias_routes.get("/{alias:name}", responses=problems(AliasNotFound, NameAmbiguous))
def get_alias(alias: AliasKey, database: DatabaseDep) -> schemas.Alias:
    """Return one alias with its checkpoint."""
    with database.read() as session:
        return resource(schemas.Alias, AliasRepository(session).get(alias))


@alias_routes.get(
    "/{alias:name}/history",
    response_model=MOVES.page(),
    responses=problems(AliasNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def alias_history(alias: AliasKey, listing: ListingDep) -> dict[str, object]:
    """List the moves of an alias, newest first, also of one that was deleted."""
    return listing.answer(MOVES, lambda session, query: AliasRepository(session).history(alias, query))


@alias_routes.put(
    "/{alias:name}",
    response_model=schemas.Alias,
    **json_command(AliasPut, AliasInvalid, AliasMoved, CheckpointNotFound, CheckpointDeleted),
)
def put_alias(alias: AliasKey, body: BodyDep, command: CommandDep, auth: AuthDep) -> Response:
    """Set an alias to a checkpoint; with `expected`, only if it has that checkpoint now."""
    request = body.read(AliasPut, {})
    compare = "expected" in request.model_fields_set

    def put(session: Session) -> Answer:
        aliases = AliasService(session, auth.principal.name)
        row = aliases.put(alias, request.checkpoint_id, compare=compare, expected=request.expected)
        return Answer(200, resource(schemas.Alias, row))

    return command.run(put)


@alias_routes.delete(
    "/{alias:name}",
    status_code=204,
    responses=deleted(AliasNotFound, NameAmbiguous, description="It is gone; the checkpoint stays."),
)
def delete_alias(alias: AliasKey, services: ServicesDep, auth: AuthDep) -> None:
    """Remove an alias. Retention may then remove the checkpoint."""
    with services.database.write() as session:
        AliasService(session, auth.principal.name).delete(alias)


request_routes = APIRouter(prefix="/v1/runs/{run:name}", tags=["runs"])

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of a request.")]


@request_routes.post(
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

    def ask(session: Session) -> Answer:
        request = resource(schemas.CheckpointRequest, request_checkpoint(session, run))
        return Answer(202, request, f"/v1/runs/{request.run_id}/checkpoint_requests/{request.seq}")

    return command.run(ask)


@request_routes.get(
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


retention_routes = APIRouter(prefix="/v1", tags=["checkpoints"])


class PruneWrite(Write):
    """Limits by which checkpoints are deleted."""

    older_than_seconds: float | None = Field(default=None, gt=0)
    """Age at which checkpoints are deleted. Default: the server's `retention_seconds`."""
    max_bytes: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """Size of all checkpoints together beyond which the oldest are deleted. Default: the server's `retention_bytes`."""
    dry_run: bool = False
    """Only say what would be deleted."""


@retention_routes.post("/checkpoints:prune", response_model=schemas.Pruned, **json_command(PruneWrite))
def prune_checkpoints(body: BodyDep, services: ServicesDep, command: CommandDep) -> Response:
    """Delete checkpoints of runs by age and total size. The newest, best, pinned and used ones are kept."""
    request = body.read(PruneWrite, {})
    settings = services.settings.storage
    limits = Limits(
        settings.retention_seconds if request.older_than_seconds is None else request.older_than_seconds,
        settings.retention_bytes if request.max_bytes is None else request.max_bytes,
    )
    if request.dry_run:
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
