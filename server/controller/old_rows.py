"""Which old rows the controller deletes, beside those of runs: the row retention job does, in a thread of its own.

Not in the rounds that take runs from lost workers: a backlog of old rows would keep the runs waiting.
"""

from server.access.audit.repository import AuditRepository
from server.access.sessions.repository import SessionRepository
from server.kit.db.database import Database
from server.kit.http.repository import IdempotencyRepository
from server.kit.settings import ControllerSettings
from server.lifecycle.retention.job import RowRetentionJob
from server.workers.repository import WorkerRepository


def old_row_job(database: Database, settings: ControllerSettings) -> RowRetentionJob:
    """Make the job that deletes old rows of every kind."""
    return RowRetentionJob(
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
    )
