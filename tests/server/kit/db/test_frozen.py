"""A process that freezes in the middle of a write does not stop everybody else for ever."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from server.kit.db.database import Database
from server.kit.db.frozen import Thaw, frozen_writer
from server.kit.errors import DatabaseUnavailable
from tests.conftest import POSTGRESQL_ONLY

WRITES = """
import os, signal, sys
from sqlalchemy import text
from server.kit.db.database import Database
with Database(sys.argv[1], busy_seconds=float(sys.argv[2])).write() as session:
    session.execute(text("UPDATE things SET value = value + 1"))
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def frozen_in_a_write(url: str, busy_seconds: float = 15) -> "subprocess.Popen[bytes]":
    """Start a process that stands still in the middle of a transaction."""
    process = subprocess.Popen([sys.executable, "-c", WRITES, url, str(busy_seconds)])
    while Path(f"/proc/{process.pid}/stat").read_text().split(")")[1].split()[0] != "T":
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_the_frozen_writer_is_found_and_after_some_patience_killed(tmp_path: Path) -> None:
    path = tmp_path / "ludus.db"
    database = Database(f"sqlite:///{path}", busy_seconds=0.2)
    with database.write() as session:
        session.execute(text("CREATE TABLE things (value INTEGER)"))
        session.execute(text("INSERT INTO things VALUES (1)"))
    assert frozen_writer(path) is None
    process = frozen_in_a_write(f"sqlite:///{path}")
    try:
        assert frozen_writer(path) == process.pid
        with pytest.raises(DatabaseUnavailable), database.write():
            raise AssertionError("nobody can write")
        clock = iter([0.0, 0.0, 9.0, 10.0]).__next__
        thaw = Thaw(path, 10.0, clock)
        assert thaw.look() is None
        assert thaw.look() is None
        assert thaw.look() == process.pid
        process.wait(10)
    finally:
        process.kill()
        process.wait()

    with database.write() as session:
        assert session.execute(text("SELECT value FROM things")).scalar_one() == 1, "nothing half done is left"
    database.close()


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_postgresql_ends_a_transaction_that_stands_still(database_url: str) -> None:
    database = Database(database_url, busy_seconds=10)
    with database.write() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS things (value INTEGER)"))
        session.execute(text("INSERT INTO things VALUES (1)"))
    process = frozen_in_a_write(database_url, busy_seconds=1)
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
