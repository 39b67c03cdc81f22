"""A process that is stopped in the middle of a write does not block all others for ever."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from server.kit.db.database import Database
from server.kit.db.stopped_writer import StoppedWriterWatchdog, stopped_writer
from server.kit.errors import DatabaseUnavailable
from tests.conftest import POSTGRESQL_ONLY
from tests.waiting import eventually

WRITES = """
import os, signal, sys
from sqlalchemy import text
from server.kit.db.database import Database
with Database(sys.argv[1], busy_seconds=float(sys.argv[2])).write() as session:
    session.execute(text("UPDATE things SET value = value + 1"))
    os.kill(os.getpid(), signal.SIGSTOP)
"""


PTRACE_ATTACH = 16


def state_of(process: "subprocess.Popen[bytes]") -> str:
    """Return the state of a process as the kernel names it (proc(5))."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def stopped_in_a_write(url: str, busy_seconds: float = 15) -> "subprocess.Popen[bytes]":
    """Start a process that is stopped in the middle of a transaction."""
    process = subprocess.Popen([sys.executable, "-c", WRITES, url, str(busy_seconds)])
    eventually(lambda: state_of(process) == "T", "it is stopped")
    return process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return an SQLite database with a table and a row."""
    path = tmp_path / "ludus.db"
    database = Database(f"sqlite:///{path}")
    with database.write() as session:
        session.execute(text("CREATE TABLE things (value INTEGER)"))
        session.execute(text("INSERT INTO things VALUES (1)"))
    database.close()
    return path


@pytest.mark.long
def test_a_writer_that_is_stopped_for_too_long_is_killed_and_nothing_half_done_is_left(path: Path) -> None:
    database = Database(f"sqlite:///{path}", busy_seconds=0.2)
    assert stopped_writer(path) is None
    process = stopped_in_a_write(f"sqlite:///{path}")
    try:
        assert stopped_writer(path) == process.pid
        with pytest.raises(DatabaseUnavailable), database.write():
            raise AssertionError("the lock is held")
        watchdog = StoppedWriterWatchdog(path, 10.0, iter([0.0, 0.0, 9.0, 10.0]).__next__)
        assert [watchdog.look() for _ in range(3)] == [None, None, process.pid]
        process.wait(10)
    finally:
        process.kill()
        process.wait()

    with database.write() as session:
        assert session.execute(text("SELECT value FROM things")).scalar_one() == 1
    database.close()


@pytest.mark.long
def test_a_writer_that_a_debugger_holds_is_left_alone(path: Path) -> None:
    process = stopped_in_a_write(f"sqlite:///{path}")
    try:
        assert ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_ATTACH, process.pid, None, None) == 0
        eventually(lambda: state_of(process) == "t", "it is traced")

        assert stopped_writer(path) is None
    finally:
        # Not `Popen.kill` and `wait`: they would take the stop, which a tracer is told of, for the end.
        os.kill(process.pid, signal.SIGKILL)
        while os.WIFSTOPPED(status := os.waitpid(process.pid, 0)[1]):
            pass
        process.returncode = os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_postgresql_ends_the_transaction_of_a_stopped_process(database_url: str) -> None:
    database = Database(database_url, busy_seconds=10)
    with database.write() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS things (value INTEGER)"))
        session.execute(text("INSERT INTO things VALUES (1)"))
    process = stopped_in_a_write(database_url, busy_seconds=1)
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
