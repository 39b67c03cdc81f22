"""The lease as its holder sees it."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from sqlalchemy import select

from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable, LeaseLost, StorageUnavailable
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import RunService
from server.metrics.points import MetricPoint
from server.runs.models import Event
from tests.factories import RecordingWakeUp, make_claim, make_run, read_metric, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.conftest import SETTINGS
from tests.worker.host.supervisor.outage import outage
from tests.worker.host.supervisor.supervising import LEASE_SECONDS, Threaded, messages_of, supervise, with_checkpoints
from worker.host.supervisor import transfers
from worker.host.supervisor.lease import AT_ONCE, MOST_POINTS, Lease, Writes


def answers(lease: Lease, seconds: float) -> list[Intent]:
    """Ask all the time; return what was answered."""
    deadline, heard = time.monotonic() + seconds, []
    while time.monotonic() < deadline:
        if (renewal := lease.keep()) is not None:
            heard.append(renewal.intent)
        time.sleep(0.01)  # allow: sleep, because a supervisor asks at its pace
    return heard


def next_answer(lease: Lease) -> Intent:
    """Ask all the time until there is an answer."""
    return eventually(lease.keep, "the lease is renewed").intent


def test_a_lease_is_renewed_at_once_and_then_at_its_pace(database: Database, lease: Lease) -> None:
    """0.2 s apart, however often it is asked for; later on a busy machine, and never sooner."""
    lease.step = 5
    began = time.monotonic()

    assert next_answer(lease) is Intent.NONE
    assert lease.keep() is None
    assert read_run(database, "run").step == 5
    assert [next_answer(lease) for _ in range(2)] == [Intent.NONE] * 2
    assert time.monotonic() - began >= 2 * SETTINGS.heartbeat_seconds


def test_a_renewal_brings_what_users_want_until_it_is_done(database: Database, lease: Lease) -> None:
    with database.write() as session:
        RunService(session, RecordingWakeUp()).pause("run")

    assert [next_answer(lease) for _ in range(2)] == [Intent.PAUSE] * 2


def test_an_attempt_whose_run_was_taken_away_is_over_at_the_next_renewal(
    database: Database, lease: Lease, ledger: AttemptLedger
) -> None:
    assert next_answer(lease) is Intent.NONE
    ledger.release("lease_expired", "It was silent.")
    make_claim(database, "another")

    with pytest.raises(LeaseLost):
        next_answer(lease)


@pytest.fixture
def short(impatient: Path) -> Iterator[Callable[[], Lease]]:
    """Makes a lease on a database that gives up waiting for another writer soon."""
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    make_run(database, name="run")

    def make() -> Lease:
        claim = make_claim(database)
        return Lease(claim, AttemptLedger(database, claim), SETTINGS)

    yield make
    database.close()


def test_an_outage_is_waited_out(impatient: Path, short: Callable[[], Lease]) -> None:
    lease = short()
    lease.keep()

    with outage(impatient):
        during = answers(lease, SETTINGS.outage_seconds / 2)

    assert during == []
    assert next_answer(lease) is Intent.NONE


def test_an_outage_that_lasts_too_long_ends_the_attempt_and_not_before(
    impatient: Path, short: Callable[[], Lease]
) -> None:
    lease = short()
    lease.keep()
    began = time.monotonic()

    with outage(impatient), pytest.raises(LeaseLost):
        answers(lease, 30)

    assert time.monotonic() - began >= SETTINGS.outage_seconds - 0.05


def test_a_claim_that_has_not_answered_once_has_the_same_patience(impatient: Path, short: Callable[[], Lease]) -> None:
    """The database goes away between the claim and the first heartbeat."""
    lease = short()

    with outage(impatient):
        assert answers(lease, SETTINGS.outage_seconds / 2) == []
    assert next_answer(lease) is Intent.NONE


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


def said(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Event.message).where(Event.type == "said").order_by(Event.seq)))


def test_a_database_that_goes_away_between_two_writes_loses_and_doubles_none(impatient: Path) -> None:
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    make_run(database)
    ledger, writes = AttemptLedger(database, make_claim(database)), Writes()
    with ExitStack() as away:
        writes.add(ledger.event, "said", "1")
        writes.add(away.enter_context, outage(impatient))
        writes.add(ledger.event, "said", "2", level="warning")
        writes.add(ledger.event, "said", "3")

        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                writes.flush(10)
            assert (len(writes), said(database)) == (2, ["1"])

    writes.flush(10)

    assert (len(writes), said(database)) == (0, ["1", "2", "3"])
    database.close()


def test_a_flush_begins_nothing_after_its_time() -> None:
    """Each takes 50 ms: the lease has to be kept in between."""
    writes, written = Writes(), list[int]()
    for number in range(10):
        writes.add(time.sleep, 0.05)
        writes.add(written.append, number)

    writes.flush(0.12)

    assert 0 < len(writes) < 20
    writes.flush(10)
    assert written == list(range(10))


def history(database: Database, run_id: str, key: str) -> list[tuple[int, float]]:
    points = read_metric(database, run_id, "Walker", key)
    return list(zip(points.steps.tolist(), points.values.tolist(), strict=True))


REPORTS = [
    [MetricPoint("Walker", "reward", 100, 1.0, 1.0), MetricPoint("Walker", "length", 100, 1.0, 10.0)],
    [MetricPoint("Walker", "reward", 200, 2.0, 2.0), MetricPoint("Walker", "reward", 200, 2.0, 3.0)],
    [MetricPoint("Walker", "reward", 200, 3.0, 9.0), MetricPoint("Walker", "reward", 150, 3.0, 9.0)],
    [MetricPoint("Walker", "reward", 300, 4.0, 4.0), MetricPoint("Walker", "length", 300, 4.0, 30.0)],
]


def test_points_that_wait_together_are_read_like_points_that_were_written_one_report_after_the_other(
    database: Database,
) -> None:
    found = []
    for at_once in (True, False):
        run = make_run(database)
        ledger, writes = AttemptLedger(database, make_claim(database)), Writes()
        for report in REPORTS:
            writes.add_points(ledger.metrics.append, report)
            if not at_once:
                writes.flush(10)
        assert len(writes) == int(at_once), "all reports that wait are one write"
        writes.flush(10)
        found.append([history(database, run.id, key) for key in ("reward", "length")])

    assert found[0] == found[1] == [[(100, 1.0), (200, 3.0), (300, 4.0)], [(100, 10.0), (300, 30.0)]]


def test_no_write_waits_for_more_than_one_write_of_metrics() -> None:
    writes, written = Writes(), list[object]()
    for number in range(100):
        writes.add_points(written.append, [MetricPoint("Walker", "reward", number, 1.0, 1.0)])
        if number in {0, 50}:
            writes.add(written.append, number)

    writes.flush(10)

    points, *others = written
    assert others == [0, 50]
    assert isinstance(points, list)
    assert [point.step for point in points] == list(range(100))


def test_points_of_an_outage_are_all_written_after_it_and_none_is_doubled(impatient: Path) -> None:
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    run = make_run(database)
    ledger, writes = AttemptLedger(database, make_claim(database)), Writes()
    with outage(impatient):
        for step in range(1, 4):
            writes.add_points(ledger.metrics.append, [MetricPoint("Walker", "reward", step, 1.0, float(step))])
            with pytest.raises(DatabaseUnavailable):
                writes.flush(10)
    writes.add_points(ledger.metrics.append, [MetricPoint("Walker", "reward", 4, 1.0, 4.0)])

    writes.flush(10)

    assert history(database, run.id, "reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    database.close()


@pytest.mark.long
def test_points_without_end_are_thinned_evenly_and_the_newest_is_kept() -> None:
    writes, written = Writes(), list[list[MetricPoint]]()
    for start in range(0, 2 * MOST_POINTS, 1024):
        steps = range(start, start + 1024)
        writes.add_points(written.append, [MetricPoint("Walker", "reward", step, 1.0, 1.0) for step in steps])

    writes.flush(10)

    steps = [point.step for part in written for point in part]
    assert len(steps) <= MOST_POINTS
    assert steps[-1] == 2 * MOST_POINTS - 1
    assert max(len(part) for part in written) <= AT_ONCE
