"""The audit log over HTTP."""

from typing import Any

from fastapi import APIRouter

from ludus import schemas
from ludus.schemas.tokens import Scope
from server.access.audit.repository import AuditRepository
from server.kit.http.auth import needs
from server.kit.http.errors import problems
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.services import DatabaseDep
from server.kit.listing import Order

router = APIRouter(prefix="/v1/audit", tags=["audit"])

AUDIT = ListForm(
    "audit",
    schemas.AuditEntry,
    AuditRepository.COLUMNS,
    orders=frozenset({"at"}),
    default=Order("at"),
    equality={"token_id", "project", "method", "request_id"},
    items="entries",
)


@router.get("", response_model=AUDIT.page(), responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_audit(listing: ListingDep, database: DatabaseDep) -> dict[str, Any]:
    """List the requests that changed something in the project, or tried to, newest first."""
    return listing.answer(AUDIT, database, lambda session, query: AuditRepository(session).list(query))
