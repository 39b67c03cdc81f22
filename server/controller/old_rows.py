"""Which old rows the controller deletes."""

from collections.abc import Sequence
from functools import partial

from server.access.repository import AuditRepository, SessionRepository
from server.kit.db.database import Database
from server.kit.http.repository import IdempotencyRepository
from server.kit.jobs import Job
from server.kit.settings import ControllerSettings
from server.lifecycle.deletion.service import ROWS
from server.lifecycle.retention.job import RowRetention, delete_in_batches
from server.workers.repository import WorkerRepository


def old_row_jobs(database: Database, settings: ControllerSettings) -> Sequence[Job]:
    """Make the jobs that delete old rows of every kind."""
    deletions = {
        "idempotency_keys": lambda session: IdempotencyRepository(session).forget(settings.idempotency_seconds, ROWS),
        "workers": lambda session: WorkerRepository(session).forget(settings.worker_seconds, ROWS),
        "audit_entries": lambda session: AuditRepository(session).forget(settings.audit_days, ROWS),
        "sessions": lambda session: SessionRepository(session).forget(ROWS),
    }
    jobs = [Job(f"old_{kind}", partial(delete_in_batches, database, delete)) for kind, delete in deletions.items()]
    return [*RowRetention(database, settings).jobs(), *jobs]
