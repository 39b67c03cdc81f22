"""Profiles of running runs over HTTP."""

from fastapi import APIRouter, Response
from pydantic import Field

from ludus import schemas
from ludus.schemas.states import RunState
from server.kit.db.database import Session
from server.kit.errors import RunEnded, RunNotFound
from server.kit.http.bodies import BodyDep
from server.kit.http.errors import problems
from server.kit.http.fields import Write
from server.kit.http.idempotency import Answer, json_command
from server.kit.http.parameters import RunKey
from server.kit.http.services import CommandDep, DatabaseDep
from server.runs.errors import RunNotRunning
from server.runs.profiles.errors import ProfileNotFound
from server.runs.profiles.repository import ProfileRepository
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}", tags=["runs"])


class ProfileWrite(Write):
    """What to profile."""

    seconds: int = Field(default=10, ge=1, le=300)
    """How long stacks are sampled: whole seconds."""


@router.post(
    ":profile",
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
        found = RunRepository(session).lock_live(run)
        if found.state != RunState.RUNNING:
            raise RunNotRunning(found.id, found.state, "be profiled")
        asked = ProfileRepository(session).add(found, seconds)
        return Answer(202, asked, f"/v1/runs/{found.id}/profile")

    return command.run(ask)


@router.get("/profile", responses=problems(RunNotFound, ProfileNotFound))
def get_profile(run: RunKey, database: DatabaseDep) -> schemas.Profile:
    """Return the newest profile of the newest attempt, finished or not."""
    with database.read() as session:
        found = RunRepository(session).get(run)
        newest = ProfileRepository(session).newest(found)
        if newest is None:
            raise ProfileNotFound(found.id)
        return newest
