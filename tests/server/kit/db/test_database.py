"""Transactions: what is committed, what is rolled back, what waits, and what happens after a commit."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from ludus.config.run import RunConfig
from server.kit.db.clock import now
from server.kit.db.database import Database, after_commit
from server.kit.db.ids import new_id
from server.kit.errors import DatabaseUnavailable
from server.runs.models import Run
from server.runs.repository import NewRun, RunRepository
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import CONFIG, RecordingWakeUp, make_run, read_run


def test_a_block_that_ends_well_is_committed(database: Database) -> None:
    run = make_run(database, name="kept")

    assert read_run(database, run.id).name == "kept"


def test_a_block_that_raises_leaves_nothing_behind(database: Database) -> None:
    run = make_run(database)

    def fail() -> None:
        with database.write() as session:
            session.execute(text("UPDATE runs SET name = 'changed'"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert read_run(database, run.id).name == run.id


def test_effects_come_after_the_commit_and_never_after_a_rollback(database: Database) -> None:
    seen: list[str] = []

    def fail() -> None:
        with database.write() as session:
            after_commit(session, lambda: seen.append("never"))
            raise RuntimeError

    with database.write() as session:
        session.execute(text("DELETE FROM runs"))
        after_commit(session, lambda: seen.append(f"{count(database)} runs"))
        make_in(session)
        assert seen == []
    with pytest.raises(RuntimeError):
        fail()

    assert seen == ["1 runs"]


def test_readers_cannot_write(database: Database) -> None:
    def write() -> None:
        with database.read() as session:
            session.execute(text("DELETE FROM runs"))

    with pytest.raises(DBAPIError, match=r"readonly|read-only"):
        write()


def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    run = make_run(database, name="before")
    with database.write() as session:
        session.execute(text("UPDATE runs SET name = 'after'"))

        assert read_run(database, run.id).name == "before"

    assert read_run(database, run.id).name == "after"


def test_a_transaction_that_reads_first_and_writes_later_waits_for_other_writers(database: Database) -> None:
    """With a deferred BEGIN on SQLite one of these would fail at once with "database is locked"."""
    make_run(database, name="0")
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def count_up() -> None:
        try:
            start.wait()
            for _ in range(25):
                with database.write() as session:
                    run = session.scalars(select(Run).with_for_update()).one()
                    run.name = str(int(run.name) + 1)
        except BaseException as error:  # noqa: BLE001  # a test reports whatever went wrong in a thread
            errors.append(error)

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    with database.read() as session:
        assert session.scalars(select(Run.name)).one() == "100"


def test_a_writer_that_waits_too_long_gets_a_clear_error(database_url: str) -> None:
    patient = Database(database_url)
    hasty = Database(database_url, busy_seconds=0.2)
    make_run(patient)

    def write(database: Database) -> None:
        with database.write() as session:
            session.execute(text("UPDATE runs SET name = 'x'"))

    with patient.write() as session:
        session.execute(text("UPDATE runs SET name = 'first'"))
        with pytest.raises(DatabaseUnavailable, match="Nothing was written"):
            write(hasty)
    patient.close()
    hasty.close()


def test_a_mistake_in_a_statement_is_not_called_an_outage(database: Database) -> None:
    def read() -> None:
        with database.read() as session:
            session.execute(text("SELECT * FROM no_such_table"))

    with pytest.raises(DBAPIError, match="no_such_table"):
        read()


def test_an_unreachable_server_is_an_outage() -> None:
    database = Database("postgresql+psycopg://nobody@127.0.0.1:9/none")

    with pytest.raises(DatabaseUnavailable):
        database.ping()

    database.close()


def test_sqlite_in_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a file"):
        Database("sqlite://")


def test_the_databases_clock_shows_the_time(database: Database) -> None:
    with database.read() as session:
        before = time.time()
        shown = session.scalars(select(now())).one()

    assert before - 0.05 <= shown <= time.time() + 0.05


def test_ids_sort_by_time() -> None:
    earlier = new_id("run")
    time.sleep(0.002)  # allow: sleep, because ids tell milliseconds apart
    later = new_id("run")

    assert earlier < later
    assert later.startswith("run_")
    assert len(later) == 30


@pytest.mark.long
def test_what_a_killed_process_had_committed_is_there(database_url: str) -> None:
    """`kill -9` right after the acknowledgement; the default settings, which sync every commit."""
    script = (
        "import sys; from server.kit.db.database import Database; from tests.factories import make_run\n"
        "database = Database(sys.argv[1])\n"
        "for number in range(1000): print(make_run(database, name=str(number)).id, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, database_url], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]
    )
    assert child.stdout is not None
    acknowledged = [child.stdout.readline().strip() for _ in range(20)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += [line.strip() for line in child.stdout.readlines() if line.endswith("\n")]
    child.wait()
    child.stdout.close()

    database = Database(database_url)
    with database.read() as session:
        assert set(acknowledged) <= set(session.scalars(select(Run.id)))
    database.close()


def count(database: Database) -> int:
    with database.read() as session:
        return RunRepository(session).count()


def make_in(session: object) -> None:
    from server.lifecycle.service import RunService  # noqa: PLC0415

    RunService(session, RecordingWakeUp()).create(NewRun(RunConfig.model_validate(CONFIG)))  # type: ignore[arg-type]


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_connection_is_pinged_only_where_it_may_be_dead_and_a_dead_one_fails_no_write(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(database_url, pool_size=1)
    pings: list[object] = []
    ping = database.engine.dialect.do_ping
    monkeypatch.setattr(database.engine.dialect, "do_ping", lambda connection: pings.append(1) or ping(connection))

    def backend() -> int:
        with database.write() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    first = backend()
    assert {backend() for _ in range(10)} == {first}
    assert not pings, "it was in use a moment ago"

    other = Database(database_url, pool_size=1)
    with other.write() as session:  # the answer comes when the server process has ended
        assert session.execute(text(f"SELECT pg_terminate_backend({first}, 5000)")).scalar_one()
    second = backend()
    assert second != first

    monkeypatch.setattr("server.kit.db.database.PING_SECONDS", -1.0)
    pings.clear()
    assert backend() == second
    assert len(pings) == 1, "it was idle for long"
    database.close()
    other.close()
