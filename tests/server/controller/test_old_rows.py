"""Old rows that belong to no run are deleted in bounded batches, and never in a round that takes runs from the dead."""

import threading
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text

from server.access.models import AuditEntry, BrowserSession
from server.controller.controller import Controller, old_row_jobs
from server.kit.db.base import Base
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.http.repository import IdempotencyKey
from server.kit.jobs import JobLoop
from server.kit.settings import ControllerSettings, Settings
from server.workers.models import Worker
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import RecordingWakeUp
from tests.server.deletions import counted
from tests.waiting import eventually

OLD = 100 * 86400.0
BACKLOG = 2500


def count(database: Database, model: type[Base]) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def add_backlog(database: Database) -> None:
    """Insert answers, entries of the audit log and sessions: many old ones, and a young one of each."""
    ages = [OLD] * BACKLOG + [0.0]
    with database.write() as session:
        at = session.scalar(select(now())) or 0.0
        keys = [
            {"scope": "POST /v1/runs", "key": str(number), "fingerprint": "", "created_at": at - age}
            for number, age in enumerate(ages)
        ]
        texts = ("actor", "token_id", "method", "route", "target", "request_id", "client")
        entry = {**dict.fromkeys(texts, ""), "project": "default", "status": 200}
        entries = [{**entry, "id": f"aud_{number}", "at": at - age} for number, age in enumerate(ages)]
        browser = {"digest": "", "project": "default", "created_at": at - OLD}
        sessions = [{**browser, "id": f"ses_{number}", "expires_at": at - age + 60} for number, age in enumerate(ages)]
        for model, rows in ((IdempotencyKey, keys), (AuditEntry, entries), (BrowserSession, sessions)):
            session.connection().execute(insert(model), rows)


def test_a_backlog_goes_in_transactions_of_a_thousand_rows_and_what_is_young_stays(database: Database) -> None:
    add_backlog(database)

    with counted(database) as deleted:
        gone = JobLoop(old_row_jobs(database, ControllerSettings()), 0.0).tick()

    assert {kind: gone[f"old_{kind}"] for kind in ("idempotency_keys", "audit_entries", "sessions")} == {
        "idempotency_keys": BACKLOG,
        "audit_entries": BACKLOG,
        "sessions": BACKLOG,
    }
    assert deleted == [1000, 1000, 500] * 3
    assert [count(database, model) for model in (IdempotencyKey, AuditEntry, BrowserSession)] == [1, 1, 1]


def test_a_round_that_takes_runs_from_the_dead_deletes_no_old_rows(database: Database, tmp_path: Path) -> None:
    add_backlog(database)

    with counted(database) as deleted:
        Controller(database, RecordingWakeUp(), Settings(home=tmp_path)).loop().tick()

    assert deleted == []
    assert count(database, IdempotencyKey) == BACKLOG + 1


def test_silent_workers_are_forgotten_a_thousand_at_a_time(database: Database) -> None:
    registry = WorkerRegistry(database)
    for name in ("old 1", "old 2", "old 3", "new"):
        registry.register(WorkerInfo(name, "host", 1, "0.1.0"))
    with database.write() as session:
        session.execute(text("UPDATE workers SET heartbeat_at = heartbeat_at - 100000 WHERE id <> 'new'"))

    with database.write() as session:
        assert WorkerRepository(session).forget(60, 2) == 2
    assert JobLoop(old_row_jobs(database, ControllerSettings()), 0.0).tick()["old_workers"] == 1

    with database.read() as session:
        assert [worker.id for worker in session.scalars(select(Worker))] == ["new"]


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_what_another_transaction_makes_young_meanwhile_stays(database: Database) -> None:
    """The race: a deletion has chosen its rows, and waits for a transaction that has changed one of them."""
    add_backlog(database)
    deletion = threading.Thread(target=JobLoop(old_row_jobs(database, ControllerSettings()), 0.0).tick)

    with database.write() as session:
        session.execute(text("UPDATE idempotency_keys SET created_at = created_at + 1e9 WHERE key = '7'"))
        deletion.start()
        eventually(lambda: waiting(database) == 1, "the deletion waits for the row")
    deletion.join()

    with database.read() as session:
        assert session.get(IdempotencyKey, ("POST /v1/runs", "7")) is not None
        assert session.get(IdempotencyKey, ("POST /v1/runs", "8")) is None


def waiting(database: Database) -> int:
    """Return how many transactions of this database wait for another one."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with database.read() as session:
        return session.scalar(text(query)) or 0
