"""Workers: who is there, and what they do."""

from fastapi import APIRouter

from server.access.tokens.principal import Scope
from server.app.access import needs
from server.app.services import DatabaseDep
from server.kit.http import filters
from server.kit.http.errors import problems
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order
from server.workers.repository import WorkerRepository
from server.workers.schemas import WorkerPage, WorkerRead

router = APIRouter(prefix="/v1/workers", tags=["workers"])

WORKERS = ListForm(
    name="workers",
    filters={
        "host": Field(filters.word),
        "run_id": Field(filters.word, EQUALITY),
        "version": Field(filters.word),
        "started_at": Field(filters.time),
        "heartbeat_at": Field(filters.time),
    },
    orders=frozenset({"started_at", "heartbeat_at", "host"}),
    default=Order("started_at"),
)


@router.get(
    "", response_model=WorkerPage, responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN, everywhere=True)
)
def list_workers(listing: ListingDep, database: DatabaseDep) -> WorkerPage:
    """List the slots of all worker hosts, newest first, also those that stopped or fell silent a while ago."""
    query = listing.query(WORKERS)
    with database.read() as session:
        page = WorkerRepository(session).list(query)
        workers = [WorkerRead.model_validate(each) for each in page.items]
    return WorkerPage(workers=workers, next_page_token=listing.token(WORKERS, page))
