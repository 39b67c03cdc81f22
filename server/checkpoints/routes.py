"""Checkpoints of a run, and their files; and checkpoints of other programs, which are uploaded."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi import Path as InPath
from pydantic import Field as ModelField

from ludus import schemas
from ludus.validation import NO_NUL
from server.checkpoints.errors import CheckpointInUse, CheckpointInvalid
from server.checkpoints.integrity import damage
from server.checkpoints.models import Checkpoint, UploadedCheckpoint
from server.checkpoints.repository import CheckpointRepository, UploadedCheckpointRepository, ref
from server.checkpoints.service import CheckpointService
from server.checkpoints.uploads import inspect, publish
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import (
    ArtifactNotFound,
    CheckpointDeleted,
    CheckpointNotFound,
    RunNotFound,
    StorageFull,
    StorageRefused,
    StorageUnavailable,
)
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
from server.runs.repository import RunRepository

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
) -> dict[str, Any]:
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
    given = body.read(ScoreWrite, {})

    def enter(session: Session) -> Answer:
        found = _find(session, run, checkpoint)
        scored = CheckpointService(session).score(found.run_id, found.id, given.metric, given.value, given.behavior)
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
        found = ref(_stored(session, run, checkpoint))
        run_id = RunRepository(session).id_of(run)
    problems = damage(services.artifacts, found)

    def note(session: Session) -> Answer:
        row = CheckpointService(session).verified(run_id, found.id, problems)
        size = sum(file.size for file in found.files)
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
        found = ref(_stored(session, run, checkpoint))
    file = next((file for file in found.files if file.name == name), None)
    if file is None:
        raise ArtifactNotFound(name, f"The checkpoint has {', '.join(file.name for file in found.files)}.")
    return send(Content.stored(services.artifacts, f"{found.path}/{file.name}", file.size, file.sha256), wanted)


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
    with publish(services.artifacts, upload.path, inspect(upload.path)) as stored:
        return command.run(lambda session: _created(CheckpointService(session).add(stored, name, behavior)))


@uploads.get("", response_model=UPLOADED.page(), responses=problems(*LIST_PROBLEMS))
def list_uploaded_checkpoints(listing: ListingDep) -> dict[str, Any]:
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


def _created(checkpoint: UploadedCheckpoint) -> Answer:
    return Answer(201, resource(schemas.UploadedCheckpoint, checkpoint), f"/v1/checkpoints/{checkpoint.id}")


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
            found = checkpoints.newest(run_id)
        case "best":
            found = checkpoints.best(run_id)
        case _:
            return checkpoints.get(run_id, checkpoint)
    if found is None:
        hint = _NONE_SO_FAR[checkpoint]
        takeover = checkpoints.takeovers([run_id]).get(run_id)
        if takeover is not None:
            hint += f" It continues {takeover.predecessor}, which has the checkpoint that it began with."
        raise CheckpointNotFound(checkpoint, hint)
    return found


def _pinned(session: Session, run: str, checkpoint: str, *, pinned: bool) -> Answer:
    found = _find(session, run, checkpoint)
    row = CheckpointService(session).pin(found.run_id, found.id, pinned=pinned)
    return Answer(200, _resource(row))


def _stored(session: Session, run: str, checkpoint: str) -> Checkpoint:
    found = _find(session, run, checkpoint)
    return CheckpointRepository(session).get_stored(found.run_id, found.id)
