"""Which errors of the database are outages, and what becomes of connections with a server that takes no writes."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from server.kit.db.database import Database
from server.kit.db.outages import is_outage
from server.kit.errors import DatabaseUnavailable
from tests.conftest import POSTGRESQL_ONLY
from tests.waiting import eventually

on_postgresql = pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)

PASS = {
    *("08000", "08001", "08003", "08004", "08006", "08007", "08P01"),
    *("25006", "25P03", "25P04", "28000", "28P01"),
    *("40000", "40001", "40002", "40003", "40P01", "53000", "53100", "53200", "53300", "53400", "55006", "55P03"),
    *("57000", "57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030", "58P01", "58P02", "58P03"),
}
_OF_CLASSES = (getattr(getattr(errors, name), "sqlstate", None) for name in dir(errors))
STATES = sorted({state for state in _OF_CLASSES if isinstance(state, str) and state > "04"})
"""All that PostgreSQL has, but for warnings."""


def passes(database: Database, state: str, mode: str) -> bool:
    """Tell whether an error with this SQLSTATE, which the server raises in a transaction, is taken for an outage."""
    kinds = {
        "write": database.write,
        "write once": lambda: database.write(once=True),
        "write gathers": lambda: database.write(gathers=True),
        "read": database.read,
        "read once": lambda: database.read(once=True),
    }
    statement = text(f"DO $$ BEGIN RAISE EXCEPTION 'raised' USING ERRCODE = '{state}'; END $$")
    try:
        with kinds[mode]() as session:
            session.execute(statement)
    except DatabaseUnavailable:
        return True
    except DBAPIError:
        return False
    raise AssertionError(f"{state} was raised in vain")


@on_postgresql
@pytest.mark.parametrize("mode", ["write", "write once", "write gathers", "read", "read once"])
def test_the_sqlstate_alone_tells_what_passes_from_what_is_a_mistake(database_url: str, mode: str) -> None:
    database = Database(database_url, pool_size=1)
    assert len(STATES) > 200

    passing = {state for state in STATES if passes(database, state, mode)}

    assert passing == (PASS if mode.startswith("write") else PASS - {"25006"})
    database.close()


@pytest.fixture
def read_only(database_url: str) -> Iterator[Database]:
    """A database whose newest sessions may not write, until the test lets them."""
    operator = Database(database_url, pool_size=1)
    name = operator.url.database
    with operator.write() as session:
        session.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    yield operator
    with operator.write() as session:
        session.execute(text(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'))
    operator.close()


@on_postgresql
@pytest.mark.parametrize("options", [{}, {"once": True}, {"gathers": True}], ids=["many", "once", "gathers"])
def test_writes_wait_out_a_read_only_database_and_reads_go_on(
    database_url: str, read_only: Database, options: dict[str, bool]
) -> None:
    database = Database(database_url, pool_size=2)

    def write() -> None:
        with database.write(**options) as session:
            session.execute(text("DELETE FROM runs"))

    for _ in range(3):
        with pytest.raises(DatabaseUnavailable, match="read-only transaction"):
            write()
        database.ping()

    with read_only.write() as session:
        session.execute(text(f'ALTER DATABASE "{database.url.database}" RESET default_transaction_read_only'))
    with pytest.raises(DatabaseUnavailable):
        write()  # on the connection that `ping` has left
    write()
    database.close()


@on_postgresql
def test_a_connection_that_leads_to_a_server_without_writes_is_given_up_with_all_others_of_the_process(
    database_url: str, read_only: Database
) -> None:
    """Otherwise a process would ask the former primary for ever: its connections work, and only it refuses."""
    database = Database(database_url, pool_size=4)

    def backend() -> int:
        with database.read() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    with database.read() as first, database.read() as second:
        kept = {int(one.execute(text("SELECT pg_backend_pid()")).scalar_one()) for one in (first, second)}
    assert backend() in kept, "reads alone are no reason"
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(text("DELETE FROM runs"))  # a mistake of ours
    assert backend() in kept

    with pytest.raises(DatabaseUnavailable), database.write() as session:
        session.execute(text("DELETE FROM runs"))

    assert backend() not in kept
    assert backend() not in kept
    database.close()


@on_postgresql
def test_nothing_is_read_over_a_connection_whose_server_takes_no_writes_any_more(database_url: str) -> None:
    """Processes that only read would not notice: the former primary answers, with what it knew last."""
    database = Database(database_url, pool_size=1)

    def backend() -> int:
        with database.read() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    first = backend()
    assert backend() == first
    with database.write() as session:
        session.execute(text("SET default_transaction_read_only = on"))  # as the server does for all of its sessions

    assert backend() != first
    database.close()


@on_postgresql
def test_reads_share_connections_with_a_server_that_takes_no_writes_for_a_moment(
    database_url: str, read_only: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection may lead to the new primary."""
    monkeypatch.setattr("server.kit.db.database.READ_ONLY_SECONDS", 0.5)
    database = Database(database_url, pool_size=1)

    def backend() -> int:
        with database.read() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    first = backend()
    assert backend() == first
    eventually(lambda: backend() != first, "another connection")
    database.close()
    read_only.ping()


@on_postgresql
def test_a_connection_with_the_server_itself_is_replaced_when_it_is_old(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.kit.db.database.SERVER_SECONDS", 0.2)
    database = Database(database_url, pool_size=1)

    def backend() -> int:
        with database.read() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    first = backend()
    eventually(lambda: backend() != first, "another connection")
    database.close()


@pytest.mark.parametrize(
    ("name", "writer", "reader"),
    [
        *((name, True, True) for name in ("SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", "SQLITE_PROTOCOL")),
        *((name, True, True) for name in ("SQLITE_FULL", "SQLITE_NOMEM", "SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN")),
        *((name, True, True) for name in ("SQLITE_READONLY_DBMOVED", "SQLITE_READONLY_CANTINIT")),
        ("SQLITE_READONLY", True, False),
        *((name, False, False) for name in ("SQLITE_ERROR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_TOOBIG", "")),
    ],
)
def test_results_of_sqlite_that_pass(name: str, *, writer: bool, reader: bool) -> None:
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorname = name
    wrapped = OperationalError("", {}, error)

    assert (is_outage(wrapped, writes=True), is_outage(wrapped, writes=False)) == (writer, reader)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_without_write_permission_is_an_outage(tmp_path: Path) -> None:
    file = tmp_path / "ludus.db"
    database = Database(f"sqlite:///{file}")
    with database.write() as session:
        session.execute(text("CREATE TABLE things (id INTEGER)"))
    database.close()
    file.chmod(0o444)

    def write() -> None:
        with database.write() as session:
            session.execute(text("INSERT INTO things VALUES (1)"))

    with pytest.raises(DatabaseUnavailable):
        write()
    for part in tmp_path.iterdir():  # SQLite gives its log and its shared memory the permissions of the file
        part.chmod(0o644)
    write()
    database.close()
