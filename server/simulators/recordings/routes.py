"""Recordings over HTTP: list them, look into them, download, delete.

A recording holds what players did and saw: its content takes the scope `run`, and each reading has an audit entry
(`server.app.access`).
"""

from io import BufferedReader
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi import Path as InPath

from ludus import schemas
from ludus.play.recordings.file import BadRecording
from ludus.play.recordings.reading import shown_frames
from server.kit.artifacts.store import SeekableFile
from server.kit.errors import ArtifactNotFound, RunNotFound
from server.kit.http.auth import needs
from server.kit.http.downloads import DOWNLOAD, Content, DownloadRequestDep, send
from server.kit.http.errors import PageTokenInvalid, RangeNotSatisfiable, deleted, problems
from server.kit.http.fields import Name
from server.kit.http.listing import ListPage, PagingDep
from server.kit.http.parameters import RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep, ServicesDep
from server.runs.repository import RunRepository
from server.simulators.recordings.repository import RecordingInvalid, RecordingNotFound, RecordingRepository

router = APIRouter(prefix="/v1/runs/{run:name}/recordings", tags=["recordings"])

RecordingKey = Annotated[Name, InPath(max_length=40, description="A recording's id.")]
MOST_FRAMES = 1000
BUFFER = 1 << 20


@router.get(
    "",
    response_model=list_of("RecordingList", schemas.Recording, "recordings", ListPage),
    responses=problems(RunNotFound, PageTokenInvalid),
)
def list_recordings(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, object]:
    """List the recordings of simulators' sessions, the newest first."""
    with database.read() as session:
        rows = RecordingRepository(session).of_run(RunRepository(session).id_of(run))
        return paging.answer("recordings", [resource(schemas.Recording, row) for row in rows])


@router.get(
    "/{recording:name}/frames",
    responses=problems(RunNotFound, RecordingNotFound, RecordingInvalid, ArtifactNotFound),
    openapi_extra=needs(schemas.Scope.RUN),
)
def read_recording(
    run: RunKey,
    recording: RecordingKey,
    services: ServicesDep,
    start: Annotated[int, Query(ge=1, le=2**31, description="Number of the first message.")] = 1,
    limit: Annotated[int, Query(ge=1, le=MOST_FRAMES, description="Maximum number of messages.")] = 200,
) -> schemas.RecordedFrames:
    """Return messages of a recording in numbers and words: rewards, actions, observations."""
    with services.database.read() as session:
        row = RecordingRepository(session).get(RunRepository(session).id_of(run), recording)
    file = BufferedReader(SeekableFile(services.artifacts, row.path, row.size), BUFFER)
    try:
        frames = tuple(shown_frames(file, start, limit))
    except BadRecording as error:
        raise RecordingInvalid(recording, str(error)) from error
    end = start + len(frames)
    return schemas.RecordedFrames(frames=frames, next_start=end if end <= row.frames and frames else None)


@router.get(
    "/{recording:name}/file",
    response_class=Response,
    responses={**DOWNLOAD, **problems(RunNotFound, RecordingNotFound, ArtifactNotFound, RangeNotSatisfiable)},
    openapi_extra=needs(schemas.Scope.RUN),
)
def download_recording(
    run: RunKey, recording: RecordingKey, services: ServicesDep, request: DownloadRequestDep
) -> Response:
    """Download a recording, or a part of it: what `ludus replay` plays."""
    with services.database.read() as session:
        row = RecordingRepository(session).get(RunRepository(session).id_of(run), recording)
    return send(Content.stored(services.artifacts, row.path, row.size, row.sha256), request)


@router.delete("/{recording:name}", status_code=204, responses=deleted(RunNotFound, RecordingNotFound))
def delete_recording(run: RunKey, recording: RecordingKey, database: DatabaseDep) -> None:
    """Delete a recording. The controller removes the file."""
    with database.write() as session:
        recordings = RecordingRepository(session)
        recordings.delete(recordings.get(RunRepository(session).id_of(run), recording))
