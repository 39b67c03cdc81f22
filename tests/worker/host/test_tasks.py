"""A worker as a process: what it does beside executing runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.queue import Doorbell, make_celery
from server.kit.settings import Settings
from server.workers.models import Worker
from server.workers.repository import WorkerRepository
from tests.factories import make_run, read_run


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """The database of the worker."""
    database = Database.from_settings(Settings(home=tmp_path).database)
    upgrade_database(database)
    yield database
    database.close()


@pytest.fixture
def worker(database: Database, tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A worker that finds what an earlier one left behind, and has begun."""
    (tmp_path / "scratch" / "run_0abc-3" / "checkpoint-1").mkdir(parents=True)
    command = [sys.executable, "-m", "ludus.cli", "worker", "--slots", "1"]
    process = subprocess.Popen(command, env={**os.environ, "LUDUS_HOME": str(tmp_path)}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: bool(listed(database)))
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def listed(database: Database) -> list[str]:
    with database.read() as session:
        return [worker.id for worker in WorkerRepository(session).list().items]


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


@pytest.mark.usefixtures("worker")
def test_a_worker_that_was_forgotten_enters_the_list_again_and_leaves_no_attempt_of_a_killed_one_behind(
    database: Database, tmp_path: Path
) -> None:
    """Forgotten: its host slept for a day, or the database is a restored one."""
    before = listed(database)
    with database.write() as session:
        session.execute(delete(Worker))

    until(lambda: listed(database) == before)

    assert not (tmp_path / "scratch" / "run_0abc-3").exists()


def test_a_worker_that_takes_a_run_as_soon_as_it_starts_is_listed_with_it(database: Database, tmp_path: Path) -> None:
    """The message is there before the worker: its slot may hear it before it has entered itself in the list."""
    run = make_run(database, name="run")
    Doorbell(make_celery(Settings(home=tmp_path))).ring(run.id)
    command = [sys.executable, "-m", "ludus.cli", "worker", "--slots", "1"]
    process = subprocess.Popen(command, env={**os.environ, "LUDUS_HOME": str(tmp_path)}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: read_run(database, "run").epoch == 1)
        with database.read() as session:
            assert [worker.run_id for worker in WorkerRepository(session).list().items] == [run.id]
        time.sleep(3)  # the row is not written anew without the run
        with database.read() as session:
            assert [worker.run_id for worker in WorkerRepository(session).list().items] == [run.id]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
