"""The audit log over HTTP."""

from typing import Any

from fastapi import APIRouter

from ludus import schemas
from ludus.schemas.tokens import Scope
from server.access.audit.models import AuditEntry
from server.kit.db.keyset import by_name
from server.kit.http.auth import needs
from server.kit.http.errors import problems
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep

router = APIRouter(prefix="/v1/audit", tags=["audit"])

AUDIT = ListForm(
    "audit",
    schemas.AuditEntry,
    by_name(
        AuditEntry.at,
        AuditEntry.actor,
        AuditEntry.token_id,
        AuditEntry.project,
        AuditEntry.method,
        AuditEntry.route,
        AuditEntry.target,
        AuditEntry.request_id,
        AuditEntry.status,
        AuditEntry.client,
    ),
    orders=("at",),
    key=AuditEntry.id,
    equality={"token_id", "project", "method", "request_id"},
    items="entries",
)


@router.get("", response_model=AUDIT.page(), responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_audit(listing: ListingDep) -> dict[str, Any]:
    """List the requests that changed something in the project, or tried to, newest first."""
    return listing.answer(AUDIT)
