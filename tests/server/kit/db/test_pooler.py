"""Ludus behind a pooler: PgBouncer in transaction pooling, and in the modes that do not fit."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from benchmarks.pooler import measure
from server.kit.db.checks import WrongPooling, check_database
from server.kit.db.database import Database
from server.kit.db.migrate import check, downgrade_database, upgrade, upgrade_database
from server.kit.errors import DatabaseUnavailable
from server.kit.settings import DatabaseSettings
from tests.chaos.servers import PgBouncer
from tests.conftest import POSTGRESQL_ONLY, postgresql_database
from tests.factories import make_run
from tests.server.kit.db.test_stopped_writer import stopped_in_a_write

pytestmark = pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)

Pooled = Callable[..., PgBouncer]


@pytest.fixture
def pooled(database_url: str) -> Iterator[Pooled]:
    """Return a function that starts a PgBouncer in front of the test's database."""
    with ExitStack() as cleanup:
        # PgBouncer's own user has to come in.
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ludus-pooler-")))
        folder.chmod(0o755)

        def start(mode: str = "transaction", connections: int = 20, clients: int = 5000) -> PgBouncer:
            pooler = PgBouncer(folder, database_url, mode, connections, clients)
            pooler.start()
            cleanup.callback(pooler.crash)
            return pooler

        yield start


def test_more_threads_than_server_connections_take_turns_with_their_transactions(
    database_url: str, pooled: Pooled
) -> None:
    pooler = pooled(connections=2)
    database = Database(pooler.url, pool_size=8)
    pids: set[int] = set()

    def work() -> None:
        for _ in range(12):  # far more often than the driver needs to prepare a statement on one server connection
            make_run(database)
            with database.read() as session:
                pids.add(session.scalar(text("SELECT pg_backend_pid()")))
                session.execute(text("SELECT count(*) FROM runs")).scalar_one()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM runs")).scalar_one() == 8 * 12
    assert 1 <= len(pids) <= 2
    database.close()


def test_the_limits_hold_in_each_transaction_and_stay_behind_in_none(database_url: str, pooled: Pooled) -> None:
    database = Database(pooled(connections=1).url, busy_seconds=7, statement_seconds=9)
    plain = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "
    plain += "current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_read_only'), "
    plain += "current_setting('jit')"
    with database.write() as session:
        assert session.execute(text(plain)).one() == ("7s", "9s", "7s", "off", "off")
    with database.read() as session:
        assert session.execute(text(plain)).one() == ("7s", "9s", "7s", "on", "off")
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as another:
        raw = another.connection.dbapi_connection
        assert raw is not None
        left = raw.cursor().execute(plain).fetchone()  # type: ignore[func-returns-value]  # psycopg's returns itself
        assert left[:4] == ("0", "0", "0", "off")
    database.close()


def test_a_writer_waits_for_a_lock_only_so_long(database_url: str, pooled: Pooled) -> None:
    database = Database(pooled().url, busy_seconds=0.3)
    run = make_run(database)
    lock = text("SELECT id FROM runs WHERE id = :id FOR UPDATE")
    with database.engine.connect() as holder, holder.begin():
        holder.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        holder.execute(lock, {"id": run.id})
        with pytest.raises(DatabaseUnavailable, match="lock timeout"), database.write() as session:
            session.execute(lock, {"id": run.id})
    database.close()


def test_the_transaction_of_a_frozen_process_ends_and_its_connection_goes_back(
    database_url: str, pooled: Pooled
) -> None:
    pooler = pooled(connections=1)  # while the frozen process keeps it, no other transaction can run
    database = Database(pooler.url, busy_seconds=10)
    with database.write() as session:
        session.execute(text("CREATE TABLE things (value INTEGER)"))
        session.execute(text("INSERT INTO things VALUES (1)"))
    process = stopped_in_a_write(pooler.url, busy_seconds=1)
    try:
        with database.write() as session:
            session.execute(text("UPDATE things SET value = value + 10"))
            assert session.execute(text("SELECT value FROM things")).scalar_one() == 11
    finally:
        process.kill()
        process.wait()
        with database.write() as session:
            session.execute(text("DROP TABLE things"))
        database.close()


def test_a_pooler_that_was_killed_costs_transactions_until_it_is_back(database_url: str, pooled: Pooled) -> None:
    pooler = pooled()
    database = Database(pooler.url)
    make_run(database)
    pooler.crash()
    with pytest.raises(DatabaseUnavailable):
        make_run(database)
    pooler.start()

    make_run(database)

    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM runs")).scalar_one() == 2
    database.close()


def test_a_connection_to_a_pooler_is_replaced_in_time_and_one_to_postgresql_is_kept(
    database_url: str, pooled: Pooled
) -> None:
    databases = [Database(url, pooler_seconds=0.2) for url in (pooled().url, database_url)]
    before = [server_process(each) for each in databases]
    time.sleep(0.3)  # allow: sleep, because the connections grow old

    after = [server_process(each) for each in databases]

    assert after[0] != before[0]
    assert after[1] == before[1]
    for each in databases:
        each.close()


def server_process(database: Database) -> int:
    """Return the process id that the server named when it took the connection; a pooler makes up another each time."""
    with database.read() as session:
        raw: Any = session.connection().connection.dbapi_connection
        return int(raw.info.backend_pid)


def test_a_database_is_migrated_through_a_pooler_by_several_processes_at_once(
    database_url: str, pooled: Pooled
) -> None:
    pooler = pooled()
    with postgresql_database() as url:
        target = url.set(host="127.0.0.1", port=pooler.port)
        databases = [Database(target) for _ in range(3)]
        threads = [threading.Thread(target=upgrade_database, args=(database,)) for database in databases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        make_run(databases[0])
        for database in databases:
            database.close()
        pooler.crash()


def test_a_migration_waits_for_a_pooler_that_is_away_as_long_as_it_is_told_to(
    database_url: str, pooled: Pooled
) -> None:
    pooler = pooled()
    settings = DatabaseSettings(url=pooler.url)  # type: ignore[arg-type]  # pydantic makes it secret
    database = Database(database_url)
    downgrade_database(database, "base")
    pooler.crash()

    with pytest.raises(DatabaseUnavailable):
        upgrade(settings)
    back = threading.Timer(1.5, pooler.start)
    back.start()
    upgrade(settings, wait_seconds=30)

    check(database)
    back.join()
    database.close()


def test_transaction_pooling_and_no_pooler_start_without_a_word(
    database_url: str, pooled: Pooled, capsys: pytest.CaptureFixture[str]
) -> None:
    check_database(DatabaseSettings(url=database_url))  # type: ignore[arg-type]  # pydantic makes it secret
    check_database(DatabaseSettings(url=pooled(connections=1).url))  # type: ignore[arg-type]  # as above

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("mode", "connections", "sentence"),
    [
        ("statement", 20, "pools statements .* Set pool_mode = transaction"),
        ("session", 1, "no second connection within .* too few connections"),
    ],
)
def test_a_pooler_in_the_wrong_mode_is_refused_with_a_sentence(
    database_url: str, pooled: Pooled, mode: str, connections: int, sentence: str
) -> None:
    with pytest.raises(WrongPooling, match=sentence):
        check_database(DatabaseSettings(url=pooled(mode, connections).url), seconds=0.5)  # type: ignore[arg-type]  # as above


def test_a_pooler_that_takes_no_second_client_right_now_stops_no_process_that_starts(
    database_url: str, pooled: Pooled
) -> None:
    with capture_logs() as logs:
        check_database(DatabaseSettings(url=pooled(clients=1).url))  # type: ignore[arg-type]  # as above

    (entry,) = logs
    assert entry["event"] == "pooling_not_checked"
    assert "no more connections" in entry["error"]


def test_session_pooling_with_enough_connections_is_mentioned(database_url: str, pooled: Pooled) -> None:
    with capture_logs() as logs:
        check_database(DatabaseSettings(url=pooled("session").url))  # type: ignore[arg-type]  # as above

    assert any("pool_mode = transaction" in str(entry) for entry in logs)


@pytest.mark.long
def test_two_hundred_slots_share_twenty_connections_of_postgresql(database_url: str) -> None:
    """Real beats and claims from four processes; `benchmarks/pooler.py` does the same with 1,000 slots."""
    database = Database(database_url)
    for number in range(100):
        make_run(database, name=f"run-{number}")

    by_pooler, by_server, beats = measure(database_url, slots=200, rounds=2, connections=20)

    assert len(beats) == 400
    assert 1 < by_pooler <= 20
    assert 1 < by_server <= 20 + 1  # this test's own
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM runs WHERE state = 'STARTING'")).scalar_one() == 100
        assert session.execute(text("SELECT count(*) FROM workers")).scalar_one() == 200
    database.close()
