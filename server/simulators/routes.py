"""Simulators of a run: who is connected, who was, and why they left."""

from fastapi import APIRouter

from server.app.services import DatabaseDep
from server.kit.errors import RunNotFound
from server.kit.http import filters
from server.kit.http.errors import problems
from server.kit.http.fields import RunKey
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order
from server.runs.repository import RunRepository
from server.simulators.repository import SimulatorRepository
from server.simulators.schemas import SimulatorPage, SimulatorRead

router = APIRouter(prefix="/v1/runs/{run:name}/simulators", tags=["simulators"])

SIMULATORS = ListForm(
    name="simulators",
    filters={
        "state": Field(filters.word, EQUALITY),
        "label": Field(filters.word),
        "number": Field(filters.integer),
        "epoch": Field(filters.integer),
        "leave_code": Field(filters.word, EQUALITY),
        "joined_at": Field(filters.time),
    },
    orders=frozenset({"joined_at", "number"}),
    default=Order("joined_at"),
)


@router.get("", response_model=SimulatorPage, responses=problems(RunNotFound, *LIST_PROBLEMS))
def list_simulators(run: RunKey, listing: ListingDep, database: DatabaseDep) -> SimulatorPage:
    """List a run's simulators, newest first; those connected now with `filter=state = connected`."""
    query = listing.query(SIMULATORS)
    with database.read() as session:
        page = SimulatorRepository(session).list(RunRepository(session).id_of(run), query)
        simulators = [SimulatorRead.model_validate(each) for each in page.items]
    return SimulatorPage(simulators=simulators, next_page_token=listing.token(SIMULATORS, page))
