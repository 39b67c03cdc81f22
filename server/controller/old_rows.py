"""Which old rows the controller deletes, beside those of runs."""

from collections.abc import Sequence

from server.access.audit.repository import AuditRepository
from server.access.sessions.repository import SessionRepository
from server.kit.db.database import Database
from server.kit.http.repository import IdempotencyRepository
from server.kit.jobs import Job
from server.kit.settings import ControllerSettings
from server.lifecycle.retention.job import RowRetention
from server.workers.repository import WorkerRepository


def old_row_jobs(database: Database, settings: ControllerSettings) -> Sequence[Job]:
    """Make the jobs that delete old rows of every kind."""
    return RowRetention(
        database,
        settings,
        {
            "idempotency_keys": lambda session, limit: IdempotencyRepository(session).forget(
                settings.idempotency_seconds, limit
            ),
            "workers": lambda session, limit: WorkerRepository(session).forget(settings.worker_seconds, limit),
            "audit_entries": lambda session, limit: AuditRepository(session).forget(settings.audit_days, limit),
            "sessions": lambda session, limit: SessionRepository(session).forget(limit),
        },
    ).jobs()
