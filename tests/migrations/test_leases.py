"""Attempts of the previous release on the schema with `leases`, and attempts of this one under its controller."""

import pytest
from sqlalchemy import text

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.kit.errors import LeaseLost
from server.kit.states import Intent
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.leases import repository as leases
from server.lifecycle.leases.repository import LeaseRepository
from server.runs.repository import RunRepository
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from tests.factories import make_claim, make_ledger, read_run

BEFORE = "0023"
NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}


def execute(database: Database, *statements: str) -> None:
    """Execute statements of the previous release; NOW is its clock."""
    now = NOW[database.url.get_backend_name()]
    with database.write() as session:
        for statement in statements:
            session.execute(text(statement.replace("NOW", now)))


def claimed_by_the_previous_release(database: Database) -> AttemptLedger:
    """Have a worker of the previous release hold a run: its lease is in the attempt's row, and in no other."""
    ledger = make_ledger(database, name="run")
    execute(database, "DELETE FROM leases", "UPDATE attempts SET lease_expires_at = NOW + 10")
    return ledger


def beat_of_the_previous_release(database: Database, seconds: float, step: int) -> None:
    execute(
        database,
        f"UPDATE attempts SET lease_expires_at = NOW + {seconds}, heartbeat_at = NOW, step = {step} WHERE number = 1",
        f"UPDATE runs SET step = {step}, updated_at = NOW",
        "UPDATE workers SET heartbeat_at = NOW",
    )


def reap(database: Database) -> list[RunState | None]:
    """Do a round of this release's controller."""
    with database.write() as session:
        repository = LeaseRepository(session)
        return [repository.reap(lease, 3) for lease in repository.expired()]


def reap_as_the_previous_release(database: Database) -> int:
    """Do a round of the previous release's controller, without its events; return how many runs it takes."""
    expired = "SELECT run_id FROM attempts WHERE lease_expires_at < NOW"
    with database.read() as session:
        now = NOW[database.url.get_backend_name()]
        found = len(session.execute(text(expired.replace("NOW", now))).all())
    if found:
        execute(
            database,
            f"UPDATE runs SET state = 'RECOVERING', restarts_without_progress = 1 WHERE id IN ({expired})",
            "UPDATE attempts SET ended_at = NOW, lease_expires_at = NULL, outcome = 'lease_expired' "
            "WHERE lease_expires_at < NOW",
        )
    return found


def test_this_releases_controller_and_readers_follow_a_worker_of_the_previous_one(database: Database) -> None:
    claimed_by_the_previous_release(database)

    beat_of_the_previous_release(database, 10, 500)

    assert reap(database) == []
    assert read_run(database, "run").step == 500
    with database.read() as session:
        (attempt,) = RunRepository(session).attempts(read_run(database, "run").id)
    assert attempt.step == 500
    beat_of_the_previous_release(database, -1, 600)
    assert reap(database) == [RunState.RECOVERING]
    assert reap(database) == []
    assert AttemptLedger(database, make_claim(database)).heartbeat(10, 600).intent is Intent.NONE


def test_the_previous_releases_controller_takes_no_run_from_a_worker_that_lives_and_one_from_a_dead_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "SHOW_SECONDS", 0.0)
    monkeypatch.setattr("server.lifecycle.attempts.repository.SHOW_SECONDS", 0.0)
    WorkerRegistry(database).register(WorkerInfo("worker-1", "host", 1, "1"))
    ledger = make_ledger(database, name="run")
    execute(database, "UPDATE workers SET heartbeat_at = 1")

    ledger.heartbeat(10, 700)

    assert reap_as_the_previous_release(database) == 0
    with database.read() as session:
        shown = session.execute(
            text("SELECT runs.step, attempts.step, lease_expires_at - attempts.heartbeat_at FROM runs, attempts")
        ).one()
        heard = session.scalars(text("SELECT heartbeat_at FROM workers")).one()
    assert tuple(shown)[:2] == (700, 700)
    assert shown[2] == pytest.approx(leases.SHOWN_LEASE_SECONDS, abs=5)
    assert heard > 1, "a controller of the previous release does not forget the worker"

    execute(database, "UPDATE attempts SET lease_expires_at = NOW - 1")  # it has written nothing for 15 minutes
    assert reap_as_the_previous_release(database) == 1
    with pytest.raises(LeaseLost):
        ledger.heartbeat(10, 800)
    execute(database, "UPDATE leases SET expires_at = 1")
    assert reap(database) == [None], "the lease that was left behind is removed"
    assert reap(database) == []
    assert read_run(database, "run").state == RunState.RECOVERING


def test_between_two_writes_for_the_previous_release_a_beat_changes_the_lease_alone(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    rows = "SELECT runs.updated_at, runs.step, lease_expires_at, attempts.step FROM runs, attempts"
    with database.read() as session:
        before = session.execute(text(rows)).one()

    ledger.heartbeat(10, 900)

    with database.read() as session:
        assert session.execute(text(rows)).one() == before
    assert read_run(database, "run").step == 900


def test_a_downgrade_keeps_the_step_of_a_run_that_trains(database: Database) -> None:
    make_ledger(database, name="run").heartbeat(10, 900)

    downgrade_database(database, BEFORE)

    with database.read() as session:
        assert session.scalars(text("SELECT step FROM runs")).all() == [900]
    upgrade_database(database)
    assert read_run(database, "run").step == 900


def test_a_busy_workers_sign_of_life_is_the_renewal_of_its_lease(database: Database) -> None:
    WorkerRegistry(database).register(WorkerInfo("worker-1", "host", 1, "1"))
    ledger = make_ledger(database, name="run")
    execute(database, "UPDATE workers SET heartbeat_at = 1")

    ledger.heartbeat(10, 1)

    with database.write() as session:
        workers = WorkerRepository(session)
        assert [worker.id for worker in workers.alive(30)] == ["worker-1"]
        assert [slot.idle for slot in workers.slots(30)] == [False]
        assert workers.forget(30, 10) == 0
    ledger.release("released", "The worker stops.")
    with database.read() as session:
        assert [worker.run_id for worker in WorkerRepository(session).alive(30)] == [None], "its last beat is kept"
