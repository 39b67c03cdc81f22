"""The audit log in the database."""

from typing import ClassVar

from sqlalchemy import select

from server.access.audit.models import AuditEntry
from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.keyset import Columns, select_page
from server.kit.db.repository import Repository, delete_some
from server.kit.listing import ListQuery, Page


class AuditRepository(Repository):
    """Entries of the audit log, seen through one session: those of its project, if it has one."""

    COLUMNS: ClassVar[Columns] = {
        "at": AuditEntry.at,
        "actor": AuditEntry.actor,
        "token_id": AuditEntry.token_id,
        "project": AuditEntry.project,
        "method": AuditEntry.method,
        "route": AuditEntry.route,
        "target": AuditEntry.target,
        "request_id": AuditEntry.request_id,
        "status": AuditEntry.status,
        "client": AuditEntry.client,
    }

    def list(self, query: ListQuery) -> Page[AuditEntry]:
        """Return a page of entries."""
        return select_page(self._session, select(AuditEntry), query, self.COLUMNS, AuditEntry.id)

    def forget(self, days: float, limit: int) -> int:
        """Delete at most `limit` entries that are so old; return how many."""
        return delete_some(self._session, AuditEntry, limit, AuditEntry.at < now() - days * DAY_SECONDS)
