"""Attempts of a run, and their logs."""

from hashlib import sha256
from io import BytesIO
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from ludus import schemas
from server.kit.errors import ArtifactNotFound, LogNotFound, RunNotFound
from server.kit.http.downloads import DOWNLOAD, Content, DownloadRequestDep, send
from server.kit.http.errors import PageTokenInvalid, RangeNotSatisfiable, problems
from server.kit.http.listing import ListPage, PagingDep
from server.kit.http.parameters import AttemptNumber, FileName, RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep, ServicesDep
from server.runs.attempts.logs import DEFAULT_BYTES, MAX_BYTES, read_part
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["attempts"])

LOGS = list_of("LogList", schemas.Log, "logs", ListPage)


@router.get(
    "/attempts",
    response_model=list_of("AttemptList", schemas.Attempt, "attempts", ListPage),
    responses=problems(RunNotFound, PageTokenInvalid),
)
def list_attempts(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, Any]:
    """List the attempts of a run, oldest first."""
    with database.read() as session:
        runs = RunRepository(session)
        return paging.answer("attempts", [resource(schemas.Attempt, each) for each in runs.attempts(runs.id_of(run))])


@router.get("/logs", response_model=LOGS, tags=["logs"], responses=problems(RunNotFound, PageTokenInvalid))
def list_logs(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, Any]:
    """List the log files of all attempts of a run."""
    with database.read() as session:
        runs = RunRepository(session)
        return paging.answer("logs", [resource(schemas.Log, each) for each in runs.logs(runs.id_of(run))])


@router.get(
    "/attempts/{attempt}/logs", response_model=LOGS, tags=["logs"], responses=problems(RunNotFound, PageTokenInvalid)
)
def list_attempt_logs(run: RunKey, attempt: AttemptNumber, database: DatabaseDep, paging: PagingDep) -> dict[str, Any]:
    """List the log files of one attempt."""
    with database.read() as session:
        runs = RunRepository(session)
        return paging.answer("logs", [resource(schemas.Log, each) for each in runs.logs(runs.id_of(run), attempt)])


@router.get(
    "/attempts/{attempt}/logs/{name}",
    tags=["logs"],
    responses=problems(RunNotFound, LogNotFound, ArtifactNotFound),
)
def read_log(
    run: RunKey,
    attempt: AttemptNumber,
    name: FileName,
    services: ServicesDep,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Byte to begin at.")] = 0,
    limit: Annotated[int, Query(ge=1, description=f"Maximum number of bytes; at most {MAX_BYTES}.")] = DEFAULT_BYTES,
    tail: Annotated[int | None, Query(ge=0, le=2**62, description="Begin so many bytes before the end.")] = None,
) -> schemas.LogText:
    """Read a part of a log."""
    with services.database.read() as session:
        runs = RunRepository(session)
        path = runs.log(runs.id_of(run), attempt, name).path
    return read_part(services.artifacts, path, offset, min(limit, MAX_BYTES), tail)


@router.get(
    "/attempts/{attempt}/logs/{name}/file",
    tags=["logs"],
    response_class=Response,
    responses={**DOWNLOAD, **problems(RunNotFound, LogNotFound, ArtifactNotFound, RangeNotSatisfiable)},
)
def download_log(
    run: RunKey, attempt: AttemptNumber, name: FileName, services: ServicesDep, wanted: DownloadRequestDep
) -> Response:
    """Download a log, or a part of it, byte for byte. One that has grown has another `ETag`."""
    with services.database.read() as session:
        runs = RunRepository(session)
        path = runs.log(runs.id_of(run), attempt, name).path
    with services.artifacts.open(path) as file:
        data = file.read()  # a few MiB (`worker.host.supervisor.attempt_log`), which are published again while it grows
    return send(Content(name, len(data), sha256(data).hexdigest(), lambda start: BytesIO(data[start:])), wanted)
