"""Simulators of a run: connected and former ones, and why those left."""

from typing import Any

from fastapi import APIRouter

from ludus import schemas
from server.kit.errors import RunNotFound
from server.kit.http.errors import problems
from server.kit.http.fields import RunKey
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.services import DatabaseDep
from server.kit.listing import Order
from server.runs.repository import RunRepository
from server.simulators.repository import SimulatorRepository

router = APIRouter(prefix="/v1/runs/{run:name}/simulators", tags=["simulators"])

SIMULATORS = ListForm(
    "simulators",
    schemas.Simulator,
    SimulatorRepository.COLUMNS,
    orders=frozenset({"joined_at", "number"}),
    default=Order("joined_at"),
    equality={"state", "leave_code"},
)


@router.get("", response_model=SIMULATORS.page(), responses=problems(RunNotFound, *LIST_PROBLEMS))
def list_simulators(run: RunKey, listing: ListingDep, database: DatabaseDep) -> dict[str, Any]:
    """List a run's simulators, newest first; those connected now with `filter=state = connected`."""
    return listing.answer(
        SIMULATORS,
        database,
        lambda session, query: SimulatorRepository(session).list(RunRepository(session).id_of(run), query),
    )
