"""Simulators of one run, or of all runs: connected and former ones, and why those left; collectors of a run."""

from fastapi import APIRouter

from ludus import schemas
from server.kit.db.database import Session
from server.kit.errors import RunNotFound
from server.kit.http.errors import PageTokenInvalid, problems
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep, ListPage, PagingDep
from server.kit.http.parameters import RunKey
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep
from server.kit.listing import ListQuery, Page
from server.runs.repository import RunRepository
from server.simulators.repository import CollectorRepository, SimulatorRepository

router = APIRouter(prefix="/v1/runs/{run:name}/simulators", tags=["simulators"])
of_all_runs = APIRouter(prefix="/v1/simulators", tags=["simulators"])

SIMULATORS = ListForm(
    "simulators",
    schemas.Simulator,
    SimulatorRepository.COLUMNS,
    orders=("joined_at", "number"),
    equality={"state", "leave_code"},
)
OF_ALL_RUNS = ListForm(
    "all-simulators",
    schemas.SimulatorListed,
    SimulatorRepository.COLUMNS_OF_ALL,
    orders=("joined_at", "left_at"),
    equality={"state", "leave_code", "run_id"},
    items="simulators",
)


@router.get("", response_model=SIMULATORS.page(), responses=problems(RunNotFound, *LIST_PROBLEMS))
def list_simulators(run: RunKey, listing: ListingDep) -> dict[str, object]:
    """List a run's simulators, newest first; those connected now with `filter=state = connected`."""
    return listing.answer(
        SIMULATORS,
        lambda session, query: SimulatorRepository(session).list(RunRepository(session).id_of(run), query),
    )


@of_all_runs.get("", response_model=OF_ALL_RUNS.page(), responses=problems(*LIST_PROBLEMS))
def list_all_simulators(listing: ListingDep) -> dict[str, object]:
    """List the simulators of all runs of the project, newest first; `order_by=left_at desc` has those that left."""

    def fetch(session: Session, query: ListQuery) -> Page[schemas.SimulatorListed]:
        page = SimulatorRepository(session).list_all(query)
        runs = RunRepository(session).named([simulator.run_id for simulator in page.items])
        listed = (
            resource(schemas.SimulatorListed, simulator, run_name=run.name, project=run.project)
            for simulator in page.items
            if (run := runs.get(simulator.run_id)) is not None  # it may be deleted meanwhile
        )
        return Page(tuple(listed), page.next)

    return listing.answer(OF_ALL_RUNS, fetch)


collectors = APIRouter(prefix="/v1/runs/{run:name}/collectors", tags=["simulators"])


@collectors.get(
    "",
    response_model=list_of("CollectorList", schemas.Collector, "collectors", ListPage),
    responses=problems(RunNotFound, PageTokenInvalid),
)
def list_collectors(run: RunKey, database: DatabaseDep, paging: PagingDep) -> dict[str, object]:
    """List the collectors of a run's live attempt: those of its worker, and edge collectors beside the games."""
    with database.read() as session:
        rows = CollectorRepository(session).of_run(RunRepository(session).without_config(run))
        return paging.answer("collectors", [resource(schemas.Collector, None, **row) for row in rows])
