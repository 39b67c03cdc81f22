"""Demonstrations: upload recordings, look into them, make new ones of them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi import Path as InPath

from ludus import schemas
from server.demonstrations.files import DemonstrationFiles
from server.demonstrations.refs import DemonstrationInUse, DemonstrationInvalid, DemonstrationNotFound
from server.demonstrations.repository import Demonstration, DemonstrationRepository, ref
from server.demonstrations.service import DemonstrationMerge, DemonstrationService, DemonstrationSubsample
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import ArtifactNotFound, StorageFull
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.downloads import DOWNLOAD, Content, DownloadRequestDep, send
from server.kit.http.errors import (
    BodyInvalid,
    RangeNotSatisfiable,
    UnsupportedFileType,
    UnsupportedMediaType,
    deleted,
    problems,
)
from server.kit.http.fields import Name
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer, Command
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep, Services, ServicesDep
from server.kit.http.uploads import FILE_BODY, UploadCommandDep, UploadDep

router = APIRouter(prefix="/v1/demonstrations", tags=["demonstrations"])

DEMONSTRATIONS = ListForm(
    "demonstrations",
    schemas.DemonstrationSummary,
    by_name(
        Demonstration.name,
        Demonstration.behavior,
        Demonstration.format,
        Demonstration.transitions,
        Demonstration.episodes,
        Demonstration.size,
        Demonstration.created_at,
    ),
    orders=("created_at", "name", "transitions", "episodes", "size"),
    key=Demonstration.id,
    equality={"format"},
)
MAKING = (DemonstrationInvalid, StorageFull, *COMMAND_PROBLEMS)
"""Problems of all requests that create a demonstration."""

DemonstrationKey = Annotated[Name, InPath(max_length=40, description="A demonstration's id.")]


@router.post(
    "",
    status_code=201,
    response_model=schemas.Demonstration,
    responses=problems(UnsupportedFileType, *MAKING),
    openapi_extra=FILE_BODY,
)
def upload_demonstration(
    upload: UploadDep,
    command: UploadCommandDep,
    services: ServicesDep,
    name: Annotated[Name | None, Query(description="Name for display; default: its id.")] = None,
) -> Response:
    """Store a recording: the body is an ML-Agents `.demo` file, or a `.npz` of Ludus' own. It is read completely."""
    return _keep(services, command, upload.path, name, {})


@router.get("", response_model=DEMONSTRATIONS.page(), responses=problems(*LIST_PROBLEMS))
def list_demonstrations(listing: ListingDep) -> dict[str, object]:
    """List demonstrations with their specs, newest first."""
    return listing.answer(DEMONSTRATIONS)


@router.post(
    ":merge",
    status_code=201,
    response_model=schemas.Demonstration,
    responses=problems(DemonstrationNotFound, ArtifactNotFound, UnsupportedMediaType, BodyInvalid, *MAKING),
    openapi_extra=declare_json(DemonstrationMerge),
)
def merge_demonstrations(body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Make one demonstration of several: all their episodes, one behind the other."""
    request = body.read(DemonstrationMerge, {})
    with services.database.read() as session:
        repository = DemonstrationRepository(session)
        sources = [ref(repository.get(id_)) for id_ in request.demonstrations]
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        target = Path(folder) / "merged.npz"
        _files(services).merge(sources, target)
        return _keep(services, command, target, request.name, {"merged": request.demonstrations})


@router.get("/{demonstration:name}", responses=problems(DemonstrationNotFound))
def get_demonstration(demonstration: DemonstrationKey, database: DatabaseDep) -> schemas.Demonstration:
    """Return one demonstration with its inspection: episodes, returns, histograms of actions."""
    with database.read() as session:
        return resource(schemas.Demonstration, DemonstrationRepository(session).get(demonstration))


@router.post(
    "/{demonstration:name}:subsample",
    status_code=201,
    response_model=schemas.Demonstration,
    responses=problems(DemonstrationNotFound, ArtifactNotFound, UnsupportedMediaType, BodyInvalid, *MAKING),
    openapi_extra=declare_json(DemonstrationSubsample),
)
def subsample_demonstration(
    demonstration: DemonstrationKey, body: BodyDep, command: CommandDep, services: ServicesDep
) -> Response:
    """Make a demonstration of some episodes, of some transitions, or of some transitions of some episodes."""
    request = body.read(DemonstrationSubsample, {})
    with services.database.read() as session:
        source = ref(DemonstrationRepository(session).get(demonstration))
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        target = Path(folder) / "sample.npz"
        parts = {"episodes": request.episodes, "every": request.every, "count": request.count}
        seed = 0 if request.seed is None and request.count is not None and request.episodes is None else request.seed
        _files(services).subsample(source, target, **parts, seed=seed)
        options = {key: value for key, value in {**parts, "seed": seed}.items() if value is not None}
        origin = {"subsampled": source.id, **options}
        return _keep(services, command, target, request.name, origin)


@router.get(
    "/{demonstration:name}/file",
    response_class=Response,
    responses={**DOWNLOAD, **problems(DemonstrationNotFound, ArtifactNotFound, RangeNotSatisfiable)},
)
def download_demonstration(
    demonstration: DemonstrationKey, services: ServicesDep, request: DownloadRequestDep
) -> Response:
    """Download the file, or a part of it, as it was uploaded or made."""
    with services.database.read() as session:
        row = DemonstrationRepository(session).get(demonstration)
    return send(Content.stored(services.artifacts, row.path, row.size, row.sha256), request)


@router.delete("/{demonstration:name}", status_code=204, responses=deleted(DemonstrationNotFound, DemonstrationInUse))
def delete_demonstration(demonstration: DemonstrationKey, services: ServicesDep) -> None:
    """Delete a demonstration. Refused while a run that has not ended uses it. The controller removes the file."""
    with services.database.write() as session:
        DemonstrationService(session).delete(demonstration)


def _files(services: Services) -> DemonstrationFiles:
    return DemonstrationFiles(services.artifacts, services.settings.storage.demonstration_decoded_bytes)


def _keep(services: Services, command: Command, file: Path, name: str | None, origin: Mapping[str, object]) -> Response:
    """Look into a file, store it, and enter it; where the answer is a repeated one, nothing new stays."""
    files = _files(services)
    with files.publish(file, files.inspect(file)) as stored:

        def add(session: Session) -> Answer:
            row = DemonstrationService(session).add(stored, name, origin)
            return Answer(201, resource(schemas.Demonstration, row), f"/v1/demonstrations/{row.id}")

        return command.run(add)
