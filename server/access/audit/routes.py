"""The audit log over HTTP."""

from typing import Any

from fastapi import APIRouter

from ludus import schemas
from ludus.schemas.tokens import Scope
from server.access.audit.repository import AuditRepository
from server.kit.http import filters
from server.kit.http.auth import needs
from server.kit.http.errors import problems
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.services import DatabaseDep
from server.kit.listing import Order

router = APIRouter(prefix="/v1/audit", tags=["audit"])

AUDIT = ListForm(
    name="audit",
    kind=schemas.AuditEntry,
    field="entries",
    filters={
        "at": Field(filters.time),
        "actor": Field(filters.word),
        "token_id": Field(filters.word, EQUALITY),
        "project": Field(filters.word, EQUALITY),
        "method": Field(filters.word, EQUALITY),
        "route": Field(filters.word),
        "target": Field(filters.word),
        "request_id": Field(filters.word, EQUALITY),
        "status": Field(filters.integer),
        "client": Field(filters.word),
    },
    orders=frozenset({"at"}),
    default=Order("at"),
)


@router.get("", response_model=AUDIT.page(), responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_audit(listing: ListingDep, database: DatabaseDep) -> dict[str, Any]:
    """List the requests that changed something in the project, or tried to, newest first."""
    return listing.answer(AUDIT, database, lambda session, query: AuditRepository(session).list(query))
