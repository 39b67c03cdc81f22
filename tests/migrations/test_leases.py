"""The schema with `leases`: a beat writes the lease alone, which all readers follow; and the way back."""

from sqlalchemy import text

from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from tests.factories import make_ledger, read_run

BEFORE = "0023"
NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}


def execute(database: Database, *statements: str) -> None:
    """Execute statements; NOW is the database's clock."""
    now = NOW[database.url.get_backend_name()]
    with database.write() as session:
        for statement in statements:
            session.execute(text(statement.replace("NOW", now)))


def test_a_beat_changes_the_lease_alone(database: Database) -> None:
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
