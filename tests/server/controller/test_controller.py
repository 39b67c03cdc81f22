"""The controller: takes runs only from the dead, and waits for no broker."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ludus.schemas.states import RunState
from server.controller.controller import Controller, ReadWindow, join_all
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.jobs import JobLoop
from server.kit.settings import Settings
from server.kit.telemetry import ControllerTelemetry
from server.lifecycle.attempts import AttemptLedger
from server.runs.events.repository import EventRepository
from server.runs.models import Attempt, Lease, Run
from server.runs.repository import RunRepository
from server.runs.scheduling.repository import WaitingRuns
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.clock import Clock
from tests.factories import RecordingWakeUp, make_claim, make_ledger, make_run, read_run
from tests.server.ladders.played import get_ladder, make_match, make_player
from tests.waiting import eventually

LEASE = 0.6


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    values = {"worker": {"lease_seconds": LEASE, "heartbeat_seconds": LEASE / 3}, "controller": {"restart_budget": 1}}
    return Settings(home=tmp_path, **values)  # type: ignore[arg-type]


@pytest.fixture
def controller(database: Database, wake_up: RecordingWakeUp, settings: Settings, clock: Clock) -> JobLoop:
    return Controller(database, wake_up, settings, clock).loop()


def watch_for(controller: JobLoop, seconds: float) -> None:
    """Tick like a running controller; no round begins later than this."""
    end = time.monotonic() + seconds

    def over() -> bool:
        controller.tick()
        return time.monotonic() >= end

    eventually(over)


def watch_until_taken(controller: JobLoop, database: Database) -> None:
    """Tick like a running controller until `run` is taken from its worker, for a minute at most.

    On a busy machine rounds come so late that they look like gaps, and the watch begins again.
    """

    def taken() -> bool:
        controller.tick()
        return read_run(database, "run").state != RunState.RUNNING

    eventually(taken, "the run is taken from its worker")


def controller_until(done: Callable[[], bool], **settings: str) -> int:
    """Run a controller process until something has come of it, for a minute at most; return its exit code on
    SIGTERM."""
    command = [sys.executable, "-m", "ludus.cli", "controller"]
    process = subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.DEVNULL)
    try:
        eventually(done, "something has come of it")
        process.send_signal(signal.SIGTERM)
        return process.wait(30)
    finally:
        process.kill()
        process.wait()


def expire(database: Database) -> AttemptLedger:
    """Make a run whose worker has fallen silent."""
    ledger = make_ledger(database, name="run")
    ledger.heartbeat(-1, 0)
    return ledger


def test_all_tasks_that_wait_for_the_broker_and_the_store_have_the_last_seconds_together() -> None:
    answer = threading.Event()
    waiting = [threading.Thread(target=answer.wait, daemon=True) for _ in range(3)]
    for thread in waiting:
        thread.start()
    began = time.monotonic()
    try:
        join_all(waiting, 1.0)
        assert 1.0 <= time.monotonic() - began < 2.0
    finally:
        answer.set()


def test_a_gap_in_reading_begins_the_watch_anew() -> None:
    window = ReadWindow(gap_seconds=5)

    assert [window.observe(now) for now in (100, 104, 109)] == [0, 4, 9]
    assert window.observe(115) == 0  # more than 5 s later: the host slept, or the clock jumped
    assert window.observe(119) == 4
    assert window.observe(118) == 0  # the clock went backwards
    window.reset()
    assert window.observe(119) == 0


def test_a_controller_that_has_just_begun_to_read_takes_nothing_away(database: Database, controller: JobLoop) -> None:
    expire(database)

    controller.tick()
    controller.tick()

    assert read_run(database, "run").state == RunState.RUNNING


def test_a_worker_that_renews_while_the_controller_watches_keeps_its_run(
    database: Database, controller: JobLoop
) -> None:
    """After an outage every lease looks expired; the living renew before the controller acts."""
    ledger = expire(database)
    controller.tick()
    ledger.heartbeat(60, 0)

    watch_for(controller, 2 * LEASE)

    assert read_run(database, "run").state == RunState.RUNNING


def test_after_one_full_lease_of_watching_the_run_goes_to_another_worker(
    database: Database, settings: Settings, clock: Clock, wake_up: RecordingWakeUp
) -> None:
    telemetry = ControllerTelemetry()
    controller = Controller(database, wake_up, settings, clock, telemetry).loop()
    ledger = expire(database)
    for number, session_id in enumerate(("plays", "also plays", "has left")):
        ledger.simulators.connected(session_id, number=number, collector=0)
    ledger.simulators.left("has left", code="left", reason="", steps=0)
    began = time.monotonic()

    watch_until_taken(controller, database)

    assert time.monotonic() - began > LEASE
    run = read_run(database, "run")
    assert run.state == RunState.RECOVERING
    assert wake_up.woken == [run.id]
    assert make_claim(database).attempt == 2
    assert telemetry.registry.get_sample_value("ludus_controller_sessions_lost_total") == 2


@pytest.mark.long
def test_333_slots_that_die_at_once_cost_their_runs_four_rounds_of_the_controller(
    database: Database, controller: JobLoop, wake_up: RecordingWakeUp
) -> None:
    """A round begins a second after the end of the one before (`controller.interval_seconds`)."""
    expire(database)
    with database.write() as session:
        for table, key in ((Run, "id"), (Attempt, "run_id"), (Lease, "run_id")):
            columns = table.__table__.columns.keys()
            chosen = ", ".join({key: "'run_' || i"}.get(name, name) for name in columns)
            numbers = "WITH RECURSIVE numbers(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM numbers WHERE i < 333)"
            rows = f"{numbers} SELECT {chosen} FROM {table.__tablename__}, numbers"
            session.execute(text(f"INSERT INTO {table.__tablename__} ({', '.join(columns)}) {rows}"))
    rounds = list[int]()

    def all_wait() -> bool:
        before = len(wake_up.woken)
        controller.tick()
        rounds.extend([1] * (len(wake_up.woken) > before))
        return len(wake_up.woken) == 333

    eventually(all_wait, "the runs wait for other workers")

    assert len(rounds) == 4
    with database.read() as session:
        assert RunRepository(session).count(RunState.RECOVERING) == 333


def test_an_outage_of_the_database_begins_the_watch_anew(
    database: Database, wake_up: RecordingWakeUp, tmp_path: Path, clock: Clock
) -> None:
    """Both watches together are longer than a lease, each alone is far from it."""
    lease = 1.5
    values = {"worker": {"lease_seconds": lease, "heartbeat_seconds": lease / 3}}
    runs = Controller(database, wake_up, Settings(home=tmp_path, **values), clock)  # type: ignore[arg-type]
    controller = runs.loop()
    expire(database)
    watch_for(controller, 0.6 * lease)
    unreachable = Database("postgresql+psycopg://nobody@127.0.0.1:9/none")
    healthy, runs._database = runs._database, unreachable
    controller.tick()
    runs._database = healthy

    watch_for(controller, 0.6 * lease)

    assert read_run(database, "run").state == RunState.RUNNING
    unreachable.close()


def test_two_controllers_charge_a_lost_worker_once(
    database: Database, wake_up: RecordingWakeUp, settings: Settings, clock: Clock
) -> None:
    expire(database)
    controllers = [Controller(database, wake_up, settings, clock).loop() for _ in range(2)]

    threads = [threading.Thread(target=watch_until_taken, args=(controller, database)) for controller in controllers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    run = read_run(database, "run")
    assert (run.state, run.restarts_without_progress) == (RunState.RECOVERING, 1)


def test_a_run_beyond_its_tokens_quota_says_so_until_one_of_them_ends(
    database: Database, wake_up: RecordingWakeUp, tmp_path: Path, clock: Clock
) -> None:
    policy = {"runs_per_token": 1, "explain_seconds": 0.01}
    controller = Controller(database, wake_up, Settings(home=tmp_path, scheduling=policy), clock).loop()  # type: ignore[arg-type]
    WorkerRegistry(database).register(WorkerInfo("host/1/0", "host", 1, "0"))
    first = make_ledger(database, name="first", owner="ada", token_id="tok_1")
    make_run(database, name="second", owner="not ada", token_id="tok_1")
    make_run(database, name="of another token", owner="ada", token_id="tok_2")
    time.sleep(0.02)  # allow: sleep, because a wait is explained when it has lasted

    controller.tick()
    clock.now += 5
    controller.tick()

    waits_for = read_run(database, "second").waits_for or ""
    assert waits_for.startswith("The token `tok_1`, which created this run, has 1 run in training")
    assert read_run(database, "of another token").waits_for is None
    first.move(RunState.CANCELLED)
    clock.now += 60
    controller.tick()
    assert read_run(database, "second").waits_for is None


def wait_long(database: Database) -> None:
    """Let every run have been queued an hour ago."""
    with database.write() as session:
        session.execute(text("UPDATE runs SET queued_at = queued_at - 3600"))


def obstacles(database: Database, run: str) -> list[str]:
    """Return the events that say that no worker serves a run."""
    with database.read() as session:
        events = EventRepository(session).page(read_run(database, run).id)
    return [event.type for event in events if event.type == "no_worker_serves"]


def look_for(controller: JobLoop, clock: Clock, seconds: float) -> None:
    """Let the controller look every five seconds."""
    for _ in range(int(seconds / 5)):
        clock.now += 5
        controller.tick()


def test_a_run_that_no_worker_serves_says_so_once_none_has_come_for_a_while(
    database: Database, controller: JobLoop, clock: Clock
) -> None:
    make_run(database, name="run")
    wait_long(database)

    look_for(controller, clock, 10)
    soon = obstacles(database, "run")
    look_for(controller, clock, 10)

    assert (soon, obstacles(database, "run")) == ([], ["no_worker_serves"])
    assert (read_run(database, "run").waits_for or "").startswith("No worker is there")


def test_a_run_whose_worker_died_says_nothing_of_workers_while_the_next_one_starts(
    database: Database, controller: JobLoop, clock: Clock
) -> None:
    make_ledger(database, name="run").release("released", "Its worker starts again.")
    wait_long(database)

    look_for(controller, clock, 10)
    WorkerRegistry(database).register(WorkerInfo("new", "host", 2, "0"))
    controller.tick()
    make_claim(database, "new")
    look_for(controller, clock, 20)

    assert obstacles(database, "run") == []


def test_runs_that_wait_for_their_turn_say_nothing_of_workers_while_the_worker_starts_anew(
    database: Database, controller: JobLoop, clock: Clock
) -> None:
    make_ledger(database, name="first")
    make_run(database, name="second")
    wait_long(database)
    for number in range(3):
        WorkerRegistry(database).register(WorkerInfo(f"worker-{number}", "host", 1, "0"))
        look_for(controller, clock, 5)
        WorkerRegistry(database).stopped(f"worker-{number}")
        look_for(controller, clock, 10)

    assert obstacles(database, "second") == []


def test_a_worker_that_comes_between_the_look_and_the_word_is_seen(
    database: Database, controller: JobLoop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(database, name="run")
    wait_long(database)
    look = WaitingRuns.uninformed
    seen: list[str] = []

    def look_and_be_overtaken(*arguments: Any, **named: Any) -> Sequence[str]:
        found = look(*arguments, **named)
        if found and not seen:
            seen.extend(found)
        if seen:  # each time: on a busy machine the test may take longer than a worker may be silent
            WorkerRegistry(database).register(WorkerInfo("new", "host", 2, "0"))
        return found

    monkeypatch.setattr(WaitingRuns, "uninformed", look_and_be_overtaken)
    look_for(controller, clock, 20)

    assert seen == [read_run(database, "run").id]
    assert obstacles(database, "run") == []
    assert read_run(database, "run").waits_for is None


def test_a_controller_runs_until_it_is_told_to_stop(database: Database, controller: JobLoop) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(10)

    assert not thread.is_alive()


def test_rounds_that_are_set_too_far_apart_for_the_lease_do_not_keep_runs_with_dead_workers(
    database: Database, wake_up: RecordingWakeUp, settings: Settings
) -> None:
    rare = settings.model_copy(
        update={"controller": settings.controller.model_copy(update={"interval_seconds": 3600.0})}
    )
    expire(database)
    stop = threading.Event()
    thread = threading.Thread(target=Controller(database, wake_up, rare).loop().run, args=(stop,))
    thread.start()

    eventually(lambda: read_run(database, "run").state == RunState.RECOVERING, "the run is taken from its worker")
    stop.set()
    thread.join(10)

    assert read_run(database, "run").state == RunState.RECOVERING


@pytest.mark.long
@pytest.mark.parametrize("answers", [True, False], ids=["hangs", "away"])
def test_the_process_takes_runs_from_the_dead_and_rates_matches_although_the_broker_is_away_or_hangs(
    tmp_path: Path, answers: bool
) -> None:
    """Another run waits meanwhile, for which the controller would ring. It ends when told to."""
    with socket.socket() as broker:
        broker.bind(("127.0.0.1", 0))
        if answers:
            broker.listen()  # connections are taken, and nothing is ever said
        settings = {
            "LUDUS_HOME": str(tmp_path),
            "LUDUS_QUEUE__BROKER_URL": f"redis://127.0.0.1:{broker.getsockname()[1]}/0",
            "LUDUS_WORKER__LEASE_SECONDS": "1.5",
            "LUDUS_WORKER__HEARTBEAT_SECONDS": "0.5",
            "LUDUS_CONTROLLER__INTERVAL_SECONDS": "0.2",
            "LUDUS_CONTROLLER__WAKE_SECONDS": "0.2",
        }
        database = Database.from_settings(Settings(home=tmp_path).database)
        upgrade_database(database)
        make_player(database, name="played").matches.append([make_match(1), make_match(2)])
        make_ledger(database, name="orphan").heartbeat(-1, 0)
        make_run(database, name="waits")

        def found() -> tuple[str, int]:
            return read_run(database, "orphan").state, get_ladder(database, "played").rated_through

        code = controller_until(lambda: found() == (RunState.RECOVERING, 2), **settings)
        became = found()
        database.close()

    assert (became, code) == ((RunState.RECOVERING, 2), 0)
