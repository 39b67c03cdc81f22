"""The audit log in the database."""

from server.access.audit.models import AuditEntry
from server.kit.db.clock import DAY_SECONDS, now
from server.kit.db.repository import Repository, delete_some


class AuditRepository(Repository):
    """Entries of the audit log, seen through one session: those of its project, if it has one."""

    def forget(self, days: float, limit: int) -> int:
        """Delete at most `limit` entries that are so old; return how many."""
        return delete_some(self._session, AuditEntry, limit, AuditEntry.at < now() - days * DAY_SECONDS)
