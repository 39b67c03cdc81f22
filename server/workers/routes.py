"""Workers over HTTP: slots and their present runs."""

from typing import Any

from fastapi import APIRouter

from ludus import schemas
from ludus.schemas.tokens import Scope
from server.kit.http.auth import needs
from server.kit.http.errors import problems
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.services import DatabaseDep
from server.kit.listing import Order
from server.workers.repository import WorkerRepository

router = APIRouter(prefix="/v1/workers", tags=["workers"])

WORKERS = ListForm(
    "workers",
    schemas.Worker,
    WorkerRepository.COLUMNS,
    orders=frozenset({"started_at", "heartbeat_at", "host"}),
    default=Order("started_at"),
    equality={"run_id"},
)


@router.get(
    "",
    response_model=WORKERS.page(),
    responses=problems(*LIST_PROBLEMS),
    openapi_extra=needs(Scope.ADMIN, everywhere=True),
)
def list_workers(listing: ListingDep, database: DatabaseDep) -> dict[str, Any]:
    """List the slots of all worker hosts, newest first, also those that stopped or fell silent a while ago."""
    return listing.answer(WORKERS, database, lambda session, query: WorkerRepository(session).list(query))
