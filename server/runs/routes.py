"""A run over HTTP: its amendments, environment parameters, health, bottleneck, profiles, attempts and logs."""

from hashlib import sha256
from io import BytesIO
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from ludus import schemas
from ludus.schemas import LogText
from ludus.schemas.states import RunState
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Session
from server.kit.errors import ArtifactNotFound, InvalidEdit, LogNotFound, RunEnded, RunNotFound
from server.kit.http.bodies import BodyDep
from server.kit.http.downloads import DOWNLOAD, Content, DownloadRequestDep, send
from server.kit.http.errors import PageTokenInvalid, RangeNotSatisfiable, problems
from server.kit.http.fields import Write
from server.kit.http.idempotency import Answer, json_command, merge_patch
from server.kit.http.listing import ListPage, PagingDep
from server.kit.http.parameters import AttemptNumber, FileName, RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import CommandDep, DatabaseDep, EditDep, ServicesDep
from server.runs.amendments import AmendmentRepository
from server.runs.diagnosis import TimeSpent, diagnose
from server.runs.environment_parameters import EnvironmentParametersUpdate, ParameterService
from server.runs.profiles import ProfileNotFound, ProfileRepository
from server.runs.repository import RunNotRunning, RunRepository

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/{run:name}/amendments", responses=problems(RunNotFound, PageTokenInvalid))
def list_amendments(run: RunKey, database: DatabaseDep, paging: PagingDep) -> schemas.Amendments:
    """Return the configuration that a run was created with, the present one, and the changes between them."""
    with database.read() as session:
        repository, row = AmendmentRepository(session), RunRepository(session).get(run)
        amended = repository.of_run(row.id)
        applied = 0 if amended is None else amended.applied
        return schemas.Amendments(
            original_config=repository.original(row),
            config=row.config,
            **paging.answer(
                "amendments",
                tuple(
                    resource(schemas.Amendment, amendment, applied=amendment.seq <= applied)
                    for amendment in repository.list(row.id)
                ),
            ),
        )


@router.get("/{run:name}/environment_parameters", responses=problems(RunNotFound))
def get_environment_parameters(run: RunKey, database: DatabaseDep) -> schemas.EnvironmentParameters:
    """Return the present lesson of each environment parameter of a run, and its criterion."""
    with database.read() as session:
        return _read(session, run)


@router.patch(
    "/{run:name}/environment_parameters",
    response_model=schemas.EnvironmentParameters,
    **merge_patch(EnvironmentParametersUpdate, RunNotFound, RunEnded, InvalidEdit),
)
def update_environment_parameters(run: RunKey, body: BodyDep, command: EditDep) -> Response:
    """Request another lesson or another value of some parameters of a live run.

    All changes are asked for, or none. They are `pending` until the trainer has carried them out, which it says by the
    event `lesson_changed` or `parameter_changed`.
    """
    update = body.read(EnvironmentParametersUpdate, {})

    def edit(session: Session) -> Answer:
        RunRepository(session).lock(run)
        command.expects(lambda: _read(session, run))
        parameters = ParameterService(session).edit(run, update.parameters)
        return Answer(200, _read(session, parameters.id))

    return command.run(edit)


def _read(session: Session, run: str) -> schemas.EnvironmentParameters:
    statuses, pending = ParameterService(session).read(run)
    return schemas.EnvironmentParameters(
        parameters=tuple(statuses),
        pending=tuple(resource(schemas.ParameterEdit, edit) for edit in pending),
    )


@router.get("/{run:name}/health", responses=problems(RunNotFound))
def get_health(run: RunKey, database: DatabaseDep) -> schemas.Health:
    """Return the findings about a run's learning: each with its number, its cause and one remedy."""
    with database.read() as session:
        findings = RunRepository(session).get(run).health
    return resource(schemas.Health, None, findings=findings or ())


@router.get("/{run:name}/bottleneck", responses=problems(RunNotFound))
def get_bottleneck(run: RunKey, database: DatabaseDep) -> schemas.Bottleneck:
    """Return what holds a run back, by measurements of the last half minute of its newest attempt."""
    with database.read() as session:
        runs = RunRepository(session)
        row = runs.get(run)
        attempts = runs.attempts(row.id)
        if row.state != RunState.RUNNING:
            return schemas.Bottleneck(message=f"The run is {row.state}: nothing is measured")
        if not attempts or attempts[-1].time_spent is None:
            return schemas.Bottleneck(message="Nothing is measured yet: that takes a few seconds of training")
        return diagnose(TimeSpent(**attempts[-1].time_spent), row.parsed_config)


class ProfileWrite(Write):
    """Settings of a profile."""

    seconds: int = Field(default=10, ge=1, le=300)
    """How long stacks are sampled: whole seconds."""


@router.post(
    "/{run:name}:profile",
    status_code=202,
    response_model=schemas.Profile,
    **json_command(ProfileWrite, RunNotFound, RunEnded, RunNotRunning, required=False),
)
def profile_run(run: RunKey, body: BodyDep, command: CommandDep) -> Response:
    """Sample the stacks of the trainer and its collectors, without stopping them.

    The answer is the request. Once it is `answered`, `log` names the flame graph (SVG) among the attempt's logs. Asked
    again meanwhile, it is the same request.
    """
    seconds = (body.read(ProfileWrite, {}) if body.content else ProfileWrite()).seconds

    def ask(session: Session) -> Answer:
        locked = RunRepository(session).lock_live(run)
        if locked.state != RunState.RUNNING:
            raise RunNotRunning(locked.id, locked.state, "be profiled")
        profile = ProfileRepository(session).add(locked, seconds)
        return Answer(202, profile, f"/v1/runs/{locked.id}/profile")

    return command.run(ask)


@router.get("/{run:name}/profile", responses=problems(RunNotFound, ProfileNotFound))
def get_profile(run: RunKey, database: DatabaseDep) -> schemas.Profile:
    """Return the newest profile of the newest attempt, finished or not."""
    with database.read() as session:
        row = RunRepository(session).get(run)
        newest = ProfileRepository(session).newest(row)
        if newest is None:
            raise ProfileNotFound(row.id)
        return newest


DEFAULT_BYTES = 64 * 1024
MAX_BYTES = 1024 * 1024


def read_part(store: ArtifactStore, path: str, offset: int, limit: int, tail: int | None) -> LogText:
    """Read at most `limit` bytes from `offset`, or from `tail` bytes before the end. Raises ArtifactNotFound."""
    size = store.size(path)
    start = min(offset, size) if tail is None else max(0, size - tail)
    with store.open(path, start) as file:
        data = file.read(limit)
    skipped = _continuation(data) if start else 0
    characters = data[: len(data) - _incomplete(data)] if start + len(data) < size else data
    text = characters[skipped:].decode("utf-8", errors="replace")
    next_offset = start + max(len(characters), skipped)
    return LogText(text=text, offset=start + skipped, next_offset=next_offset, size=size)


def _continuation(data: bytes) -> int:
    """Count the bytes at the beginning that belong to a character before it (at most 3)."""
    for index, byte in enumerate(data[:3]):
        if byte & 0xC0 != 0x80:
            return index
    return min(len(data), 3)


def _incomplete(data: bytes) -> int:
    """Count the bytes at the end that begin a character which goes on beyond it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length and back < len(data) else 0
        if byte < 0x80:
            return 0
    return 0


attempts = APIRouter(prefix="/v1/runs/{run:name}", tags=["attempts"])

LOGS = list_of("LogList", schemas.Log, "logs", ListPage)


@attempts.get(
    "/attempts",
    response_model=list_of("AttemptList", schemas.Attempt, "attempts", ListPage),
    responses=problems(RunNotFound, PageTokenInvalid),
)
def list_attempts(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, object]:
    """List the attempts of a run, oldest first."""
    with database.read() as session:
        runs = RunRepository(session)
        return paging.answer(
            "attempts", [resource(schemas.Attempt, attempt) for attempt in runs.attempts(runs.id_of(run))]
        )


@attempts.get("/logs", response_model=LOGS, tags=["logs"], responses=problems(RunNotFound, PageTokenInvalid))
def list_logs(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, object]:
    """List the log files of all attempts of a run."""
    with database.read() as session:
        runs = RunRepository(session)
        return paging.answer("logs", [resource(schemas.Log, log) for log in runs.logs(runs.id_of(run))])


@attempts.get(
    "/attempts/{attempt}/logs",
    response_model=LOGS,
    tags=["logs"],
    responses=problems(RunNotFound, PageTokenInvalid),
)
def list_attempt_logs(
    run: RunKey, attempt: AttemptNumber, database: DatabaseDep, paging: PagingDep
) -> dict[str, object]:
    """List the log files of one attempt."""
    with database.read() as session:
        runs = RunRepository(session)
        return paging.answer("logs", [resource(schemas.Log, log) for log in runs.logs(runs.id_of(run), attempt)])


@attempts.get(
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


@attempts.get(
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
        data = file.read()  # a few MiB (`worker.host.supervisor.logs`), which are published again while it grows
    return send(Content(name, len(data), sha256(data).hexdigest(), lambda start: BytesIO(data[start:])), wanted)
