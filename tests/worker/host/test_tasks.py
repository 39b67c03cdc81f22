"""A worker as a process: what it does beside executing runs."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from sqlalchemy import delete, select

from ludus.schemas.states import RunKind
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.scheduling import SchedulingSettings
from server.kit.settings import Settings
from server.lifecycle.claims.repository import Claim, RunQueue
from server.lifecycle.lending import SlotLending
from server.runs.events.repository import EventRepository
from server.runs.models import Lease
from server.workers.models import Worker
from server.workers.service import WorkerService
from tests.e2e.test_demonstrations import clone
from tests.factories import make_run, read_run
from tests.ports import free_port
from tests.server.demonstrations.test_service import add
from tests.waiting import eventually, never
from worker.host.tasks import has_lent

pytestmark = pytest.mark.long  # both start a worker with its libraries, and a trainer


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
        eventually(lambda: bool(listed(database)))
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def listed_runs(database: Database) -> list[str | None]:
    with database.read() as session:
        return [worker.run_id for worker in session.scalars(select(Worker))]


def signs(database: Database) -> tuple[float, float]:
    """Return the signs of life that the worker's own row and its lease have."""
    query = select(Worker.stored_heartbeat_at, Lease.renewed_at).join(Lease, Lease.run_id == Worker.run_id)
    with database.read() as session:
        own, renewed = session.execute(query).one()
    return own, renewed


def listed(database: Database) -> list[str]:
    with database.read() as session:
        return [worker.id for worker in session.scalars(select(Worker))]


@pytest.mark.usefixtures("worker")
def test_a_worker_that_was_forgotten_enters_the_list_again_and_leaves_no_attempt_of_a_killed_one_behind(
    database: Database, tmp_path: Path
) -> None:
    """Forgotten: its host slept for a day, or the database is a restored one."""
    before = listed(database)
    with database.write() as session:
        session.execute(delete(Worker))

    eventually(lambda: listed(database) == before)

    assert not (tmp_path / "scratch" / "run_0abc-3").exists()


def test_a_worker_that_takes_a_run_as_soon_as_it_starts_is_listed_with_it(database: Database, tmp_path: Path) -> None:
    """The message is there before the worker: its slot may hear it before it has entered itself in the list."""
    run = make_run(database, name="run")
    WakeUpQueue(make_celery(Settings(home=tmp_path))).wake(run.id)
    command = [sys.executable, "-m", "ludus.cli", "worker", "--slots", "1"]
    process = subprocess.Popen(command, env={**os.environ, "LUDUS_HOME": str(tmp_path)}, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: read_run(database, "run").attempt == 1)
        assert listed_runs(database) == [run.id]
        claimed = signs(database)
        eventually(lambda: signs(database)[1] > claimed[1], "the lease is renewed")
        before = signs(database)
        never(lambda: listed_runs(database) != [run.id], "its row is written again without the run", 3)
        after = signs(database)
        assert after[1] > before[1]
        assert after[0] == before[0], "a busy slot writes no second sign of life"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextmanager
def started(home: Path, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "ludus.cli", "worker", *options]
    process = subprocess.Popen(command, env={**os.environ, "LUDUS_HOME": str(home)}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_worker_of_one_run_takes_a_run_that_waits_without_a_message_and_exits_after_it(
    database: Database, tmp_path: Path
) -> None:
    demonstration = add(database, tmp_path)
    first = make_run(database, name="first", config=clone(demonstration), demonstrations=[demonstration])
    second = make_run(database, name="second")

    with started(tmp_path, "--once") as worker:
        assert worker.wait(120) == 0

    ended = read_run(database, first.id)
    assert (ended.state, ended.stop_reason, ended.attempt) == ("SUCCEEDED", "completed", 1), ended.stop_detail
    assert (read_run(database, second.id).state, read_run(database, second.id).attempt) == ("QUEUED", 0)


def test_a_worker_of_one_run_that_lends_its_slot_executes_the_other_run_before_it_exits(
    database: Database, tmp_path: Path
) -> None:
    first = make_run(database, name="first")
    with started(tmp_path, "--once") as worker:
        eventually(lambda: read_run(database, first.id).state == "STARTING")
        demonstration = add(database, tmp_path)
        clones = make_run(database, name="clones", config=clone(demonstration), demonstrations=[demonstration])

        SlotLending(database, SchedulingSettings(), 60).lend()
        assert worker.wait(120) == 0

    assert read_run(database, clones.id).state == "SUCCEEDED"
    back = read_run(database, first.id)
    assert (back.state, back.attempt, back.queued_at) == ("QUEUED", 1, first.queued_at)
    with database.read() as session:
        said = {event.type: event.message for event in EventRepository(session).page(first.id)}
    assert said["slot_lent"] == "Slot lent to run clones, which needs no game; no game has joined this one yet."
    assert said["run_queued"] == "The run has lent its slot, and waits again, in its former place."


def test_a_slot_that_can_not_read_whether_its_run_lent_it_logs_that() -> None:
    away = Database(f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none")

    with structlog.testing.capture_logs() as logs:
        assert not has_lent(RunQueue(away), Claim("run_1", 1, RunKind.TRAIN, "run", {}, 1, None, "host/1/1"))
    away.close()

    assert [log["event"] for log in logs] == ["queue_not_read"]


def test_a_worker_of_one_run_whose_slot_is_killed_with_it_takes_no_other_and_says_by_its_exit_code_that_it_failed(
    database: Database, tmp_path: Path
) -> None:
    demonstration = add(database, tmp_path)
    config = clone(demonstration)
    config["behaviors"]["Walker"]["max_steps"] = 10**8
    first = make_run(database, name="first", config=config, demonstrations=[demonstration])
    second = make_run(database, name="second")

    with started(tmp_path, "--once") as worker:
        eventually(lambda: read_run(database, first.id).state == "RUNNING", "it trains")
        (slot,) = listed(database)
        os.kill(int(slot.split("/")[1]), signal.SIGKILL)
        assert worker.wait(60) == 1

    assert read_run(database, first.id).attempt == 1, "another worker resumes it when its lease has run out"
    assert (read_run(database, second.id).state, read_run(database, second.id).attempt) == ("QUEUED", 0)


def test_an_idle_worker_exits_and_a_message_without_a_run_does_not_keep_it(database: Database, tmp_path: Path) -> None:
    WakeUpQueue(make_celery(Settings(home=tmp_path))).wake("run_that_is_gone")

    with started(tmp_path, "--once", "--idle-exit", "1s") as worker:
        assert worker.wait(60) == 0

    with database.read() as session:
        (slot,) = session.scalars(select(Worker))
    assert slot.stopped_at is not None


@pytest.mark.usefixtures("worker")
def test_a_drained_worker_hands_its_run_back_and_takes_it_again_when_the_cordon_is_lifted(
    database: Database, tmp_path: Path
) -> None:
    queue = WakeUpQueue(make_celery(Settings(home=tmp_path)))
    run = make_run(database, name="run")
    queue.wake(run.id)
    eventually(lambda: listed_runs(database) == [run.id])
    host = socket.gethostname()

    with database.write() as session:
        WorkerService(session).drain(host)
    eventually(lambda: listed_runs(database) == [None])
    handed_back = read_run(database, run.id)
    queue.wake(run.id)
    never(lambda: listed_runs(database) == [run.id], "a cordoned worker takes a run", 1)
    with database.write() as session:
        WorkerService(session).uncordon(host)
    queue.wake(run.id)

    assert (handed_back.state, handed_back.restarts_without_progress) == ("RECOVERING", 0)
    eventually(lambda: listed_runs(database) == [run.id])
    assert read_run(database, run.id).attempt == 2
