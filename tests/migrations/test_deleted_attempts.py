"""Attempts that go with their runs stay counted, whichever release deletes them."""

import threading

from sqlalchemy import delete, select, text

from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.lifecycle.attempts import AttemptLedger
from server.runs.models import DeletedAttempts, Run
from tests.factories import make_claim, make_run

BEFORE = "0028"


def run_with(database: Database, *outcomes: str, steps: int) -> str:
    """Make a run whose attempts end with these outcomes; return its id."""
    run = make_run(database)
    for outcome in outcomes:
        ledger = AttemptLedger(database, make_claim(database))
        ledger.heartbeat(10.0, steps)
        ledger.release(outcome, "gone")
    with database.write() as session:
        session.execute(text("UPDATE runs SET state = 'CANCELLED'"))
    return run.id


def totals(database: Database) -> dict[str, tuple[int, int]]:
    with database.read() as session:
        rows = session.scalars(select(DeletedAttempts).order_by(DeletedAttempts.outcome))
        return {row.outcome: (row.attempts, row.agent_steps) for row in rows}


def test_a_run_that_the_previous_release_deletes_stays_counted(database: Database) -> None:
    run_id = run_with(database, "worker_lost", "worker_lost", "completed", steps=100)

    with database.write() as session:
        session.execute(text("DELETE FROM runs WHERE id = :id"), {"id": run_id})

    assert totals(database) == {"completed": (1, 100), "worker_lost": (2, 200)}


def test_a_deletion_that_is_rolled_back_counts_nothing(database: Database) -> None:
    run_id = run_with(database, "worker_lost", steps=100)

    with database.engine.connect() as connection:
        connection.execute(delete(Run).where(Run.id == run_id))
        connection.rollback()

    assert totals(database) == {}


def test_several_deletions_at_once_count_each_attempt_once(database: Database) -> None:
    outcomes = ["completed", "trainer_lost", "worker_lost"]
    runs = [run_with(database, *order, steps=10) for order in (outcomes, outcomes[::-1]) * 4]

    def remove(run_id: str) -> None:
        with database.write() as session:
            session.execute(delete(Run).where(Run.id == run_id))

    threads = [threading.Thread(target=remove, args=(run_id,)) for run_id in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert totals(database) == dict.fromkeys(outcomes, (8, 80))


def test_taking_it_back_lets_runs_be_deleted_and_the_upgrade_begins_at_nothing(database: Database) -> None:
    first, second = run_with(database, "worker_lost", steps=100), run_with(database, "worker_lost", steps=100)
    with database.write() as session:
        session.execute(delete(Run).where(Run.id == first))

    downgrade_database(database, BEFORE)
    with database.write() as session:
        session.execute(delete(Run).where(Run.id == second))
    upgrade_database(database)

    assert totals(database) == {}
