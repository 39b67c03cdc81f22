"""The bottleneck of a run, over HTTP."""

from fastapi import APIRouter

from ludus import schemas
from ludus.schemas.states import RunState
from server.kit.errors import RunNotFound
from server.kit.http.errors import problems
from server.kit.http.parameters import RunKey
from server.kit.http.services import DatabaseDep
from server.runs.bottleneck.diagnosis import diagnose
from server.runs.bottleneck.times import TimeSpent
from server.runs.repository import RunRepository

router = APIRouter(prefix="/v1/runs/{run:name}/bottleneck", tags=["runs"])


@router.get("", responses=problems(RunNotFound))
def get_bottleneck(run: RunKey, database: DatabaseDep) -> schemas.Bottleneck:
    """Return what holds a run back, by measurements of the last half minute of its newest attempt."""
    with database.read() as session:
        runs = RunRepository(session)
        found = runs.get(run)
        attempts = runs.attempts(found.id)
        if found.state != RunState.RUNNING:
            return schemas.Bottleneck(message=f"The run is {found.state}: nothing is measured")
        if not attempts or attempts[-1].time_spent is None:
            return schemas.Bottleneck(message="Nothing is measured yet: that takes a few seconds of training")
        return diagnose(TimeSpent(**attempts[-1].time_spent), found.parsed_config)
