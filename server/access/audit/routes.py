"""The audit log: who changed what, when, and from where."""

from fastapi import APIRouter

from server.access.audit.repository import AuditRepository
from server.access.audit.schemas import AuditPage, AuditRead
from server.access.tokens.principal import Scope
from server.app.access import needs
from server.app.services import DatabaseDep
from server.kit.http import filters
from server.kit.http.errors import problems
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order

router = APIRouter(prefix="/v1/audit", tags=["audit"])

AUDIT = ListForm(
    name="audit",
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


@router.get("", response_model=AuditPage, responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_audit(listing: ListingDep, database: DatabaseDep) -> AuditPage:
    """List the requests that changed something in the project, or tried to, newest first."""
    query = listing.query(AUDIT)
    with database.read() as session:
        page = AuditRepository(session).list(query)
        entries = [AuditRead.model_validate(each) for each in page.items]
    return AuditPage(entries=entries, next_page_token=listing.token(AUDIT, page))
