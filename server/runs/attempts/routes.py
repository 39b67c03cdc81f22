"""Attempts of a run, and their logs."""

from hashlib import sha256
from io import BytesIO
from typing import Annotated

from fastapi import APIRouter, Query, Response

from server.app.services import DatabaseDep, ServicesDep
from server.kit.errors import ArtifactNotFound, LogNotFound, RunNotFound
from server.kit.http.downloads import DOWNLOAD, Content, WishDep, send
from server.kit.http.errors import RangeNotSatisfiable, problems
from server.kit.http.fields import Epoch, FileName, RunKey
from server.runs.attempts.logs import DEFAULT_BYTES, MAX_BYTES, read_part
from server.runs.attempts.schemas import AttemptList, AttemptRead, LogList, LogRead, LogText
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["attempts"])


@router.get("/attempts", response_model=AttemptList, responses=problems(RunNotFound))
def list_attempts(run: RunKey, database: DatabaseDep) -> AttemptList:
    """Return all attempts of a run, oldest first."""
    with database.read() as session:
        runs = RunRepository(session)
        return AttemptList(attempts=[AttemptRead.model_validate(each) for each in runs.attempts(runs.id_of(run))])


@router.get("/logs", response_model=LogList, tags=["logs"], responses=problems(RunNotFound))
def list_logs(run: RunKey, database: DatabaseDep) -> LogList:
    """Return the log files of all attempts of a run."""
    with database.read() as session:
        runs = RunRepository(session)
        return LogList(logs=[LogRead.model_validate(each) for each in runs.logs(runs.id_of(run))])


@router.get("/attempts/{epoch}/logs", response_model=LogList, tags=["logs"], responses=problems(RunNotFound))
def list_attempt_logs(run: RunKey, epoch: Epoch, database: DatabaseDep) -> LogList:
    """Return the log files of one attempt."""
    with database.read() as session:
        runs = RunRepository(session)
        return LogList(logs=[LogRead.model_validate(each) for each in runs.logs(runs.id_of(run), epoch)])


@router.get(
    "/attempts/{epoch}/logs/{name}",
    response_model=LogText,
    tags=["logs"],
    responses=problems(RunNotFound, LogNotFound, ArtifactNotFound),
)
def read_log(
    run: RunKey,
    epoch: Epoch,
    name: FileName,
    services: ServicesDep,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Byte to begin at.")] = 0,
    limit: Annotated[int, Query(ge=1, description=f"Most bytes; at most {MAX_BYTES}.")] = DEFAULT_BYTES,
    tail: Annotated[int | None, Query(ge=0, le=2**62, description="Begin so many bytes before the end.")] = None,
) -> LogText:
    """Read a part of a log."""
    with services.database.read() as session:
        runs = RunRepository(session)
        path = runs.log(runs.id_of(run), epoch, name).path
    return LogText.model_validate(read_part(services.artifacts, path, offset, min(limit, MAX_BYTES), tail))


@router.get(
    "/attempts/{epoch}/logs/{name}/file",
    tags=["logs"],
    response_class=Response,
    responses={**DOWNLOAD, **problems(RunNotFound, LogNotFound, ArtifactNotFound, RangeNotSatisfiable)},
)
def download_log(run: RunKey, epoch: Epoch, name: FileName, services: ServicesDep, wish: WishDep) -> Response:
    """Download a log, or a part of it, byte for byte. One that has grown has another `ETag`."""
    with services.database.read() as session:
        runs = RunRepository(session)
        path = runs.log(runs.id_of(run), epoch, name).path
    with services.artifacts.open(path) as file:
        data = file.read()  # a few MiB (`worker.host.supervisor.attempt_log`), which are published anew while it grows
    return send(Content(name, len(data), sha256(data).hexdigest(), lambda start: BytesIO(data[start:])), wish)
