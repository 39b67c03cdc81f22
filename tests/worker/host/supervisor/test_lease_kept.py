"""A run is not taken away from a supervisor that is busy, or whose store or database is away for a while."""

import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from sqlalchemy import select

from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import StorageUnavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.service import RunService
from server.runs.models import Event
from tests.factories import RecordingWakeUp, make_run, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import (
    LEASE_SECONDS,
    Threaded,
    messages_of,
    supervise,
    with_checkpoints,
)
from worker.host.supervisor import transfers


class SlowStore(FolderStore):
    """A store whose disk takes longer than a lease."""

    def publish(self, source: Path, path: str) -> list[FileRef]:
        if source.is_dir():
            time.sleep(LEASE_SECONDS + 1)  # allow: sleep, because the store is slow
        return super().publish(source, path)


def test_a_run_is_not_taken_away_while_its_finished_trainer_ends(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")

    expired = supervise(database, tmp_path, Threaded(trainers.lingers, seconds=LEASE_SECONDS + 1))

    assert expired == []
    assert read_run(database, "run").state == RunState.SUCCEEDED


@pytest.mark.long
def test_a_run_is_not_taken_away_while_the_last_checkpoint_of_a_dead_trainer_is_copied(
    database: Database, tmp_path: Path
) -> None:
    make_run(database, name="run")

    expired = supervise(database, tmp_path, Threaded(trainers.dies), store=SlowStore(tmp_path / "artifacts"))

    assert expired == []
    with database.read() as session:
        (stored,) = session.scalars(select(Checkpoint)).all()
        assert stored.step == 7
    assert read_run(database, "run").state == RunState.RECOVERING


class DistantStore(FolderStore):
    """A store that is away at first, and then slow: together for longer than a lease."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.refusals = 2

    def open(self, path: str, start: int = 0) -> BinaryIO:
        if self.refusals:
            self.refusals -= 1
            raise StorageUnavailable("there is no route to it")
        time.sleep(LEASE_SECONDS / 2)  # allow: sleep, because the store is slow
        return super().open(path, start)


@pytest.mark.long
def test_a_store_that_is_away_or_slow_costs_neither_the_lease_nor_the_checkpoint(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "FIRST_PAUSE_SECONDS", 0.8)
    with_checkpoints(database, FolderStore(tmp_path / "artifacts"), tmp_path, [100])

    expired = supervise(database, tmp_path, Threaded(trainers.resumes), store=DistantStore(tmp_path / "artifacts"))

    assert expired == []
    assert messages_of(database)["resumed"] == "100"
    assert "checkpoint_damaged" not in messages_of(database)


@pytest.mark.long
def test_an_outage_of_the_database_longer_than_a_lease_costs_neither_the_trainer_nor_what_it_said(
    tmp_path: Path, sqlite_template: Path
) -> None:
    path = tmp_path / "ludus.db"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}", synchronous="NORMAL", busy_seconds=0.2)
    run = make_run(database, name="run")
    outage = threading.Timer(1.0, keep_away, (path, LEASE_SECONDS + 1))
    outage.start()

    supervise(
        database, tmp_path, Threaded(trainers.counts, needs_supervisor=True, number=100, seconds=LEASE_SECONDS + 3)
    )

    outage.join()
    with database.read() as session:
        said = session.scalars(select(Event.message).where(Event.type == "counted").order_by(Event.seq)).all()
    ended = read_run(database, run.id)
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 1)
    assert said == [str(number) for number in range(100)], "what was reported during the outage waited, in order"
    database.close()


def keep_away(path: Path, seconds: float) -> None:
    """Hold SQLite's write lock for so long."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(seconds)  # allow: sleep, because the outage lasts so long
    connection.rollback()
    connection.close()


@pytest.mark.long
def test_a_last_checkpoint_that_the_store_takes_its_time_for_is_waited_for(database: Database, tmp_path: Path) -> None:
    """The trainer has done its part in time; a stop without its last checkpoint would be a loss that nobody wanted."""
    run = make_run(database, name="run").id

    def stop() -> None:
        eventually(lambda: "trainer_listening" in messages_of(database))
        with database.write() as session:
            RunService(session, RecordingWakeUp()).stop(run)

    stopping = threading.Thread(target=stop)
    stopping.start()
    supervise(
        database,
        tmp_path,
        Threaded(trainers.stops),
        store=SlowStore(tmp_path / "artifacts"),
        stop_seconds=LEASE_SECONDS,
    )
    stopping.join(20)

    ended = read_run(database, run)
    with database.read() as session:
        steps = session.scalars(select(Checkpoint.step)).all()
    assert (ended.state, ended.stop_detail, steps) == ("SUCCEEDED", "stopped on request", [7])


@pytest.mark.long
def test_a_trainer_that_begins_during_an_outage_is_not_too_late_because_of_it(
    tmp_path: Path, sqlite_template: Path
) -> None:
    path, flag = tmp_path / "ludus.db", tmp_path / "away"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}", synchronous="NORMAL", busy_seconds=0.2)
    run = make_run(database, name="run")

    def be_away() -> None:
        eventually(lambda: read_run(database, run.id).state == RunState.STARTING)
        with_lock = threading.Timer(0.5, flag.touch)
        with_lock.start()
        keep_away(path, 5.0)

    outage = threading.Thread(target=be_away)
    outage.start()
    trainer = Threaded(trainers.talks_first, needs_supervisor=True, flag=str(flag), seconds=6.0)
    supervise(database, tmp_path, trainer, startup_seconds=3.0)
    outage.join(30)

    ended = read_run(database, run.id)
    database.close()
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 1)


class FarLedger(AttemptLedger):
    """A ledger whose database is far away."""

    def event(self, *arguments: Any, **named: Any) -> None:
        time.sleep(0.05)  # allow: sleep, because the database is far away
        super().event(*arguments, **named)


@pytest.mark.long
def test_the_lease_is_kept_while_much_is_written(database: Database, tmp_path: Path) -> None:
    """80 events at 50 ms each take twice a lease."""
    make_run(database, name="run")

    expired = supervise(database, tmp_path, Threaded(trainers.floods, number=80), ledger=FarLedger)

    with database.read() as session:
        said = session.scalars(select(Event.message).where(Event.type == "counted").order_by(Event.seq)).all()
    assert expired == []
    assert said == [str(number) for number in range(80)]
    assert read_run(database, "run").state == RunState.SUCCEEDED
