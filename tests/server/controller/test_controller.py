"""The steward: takes runs only from the dead, forgets the old, and waits for no broker."""

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

from server.controller.controller import Steward, Watch
from server.kit.db.clock import now
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.http.models import IdempotencyKey
from server.kit.settings import Settings
from server.runs.attempts.repository import AttemptLedger
from server.runs.events.repository import EventRepository
from server.runs.scheduling.repository import WaitingRuns
from server.runs.states import RunState
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from tests.clock import Clock
from tests.factories import RecordingBell, make_claim, make_ledger, make_run, read_run
from tests.server.ladders.played import get_ladder, make_match, make_player

LEASE = 0.6


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    values = {"worker": {"lease_seconds": LEASE, "heartbeat_seconds": LEASE / 3}, "steward": {"restart_budget": 1}}
    return Settings(home=tmp_path, **values)  # type: ignore[arg-type]


@pytest.fixture
def steward(database: Database, bell: RecordingBell, settings: Settings, clock: Clock) -> Steward:
    return Steward(database, bell, settings, clock)


def watch_for(steward: Steward, seconds: float) -> None:
    """Tick like a running steward; no round begins later than this."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        steward.tick()
        time.sleep(0.05)


def watch_until_taken(steward: Steward, database: Database) -> None:
    """Tick like a running steward until `run` is taken from its worker, for a minute at most.

    On a busy machine rounds come so late that they look like gaps, and the watch begins anew.
    """
    end = time.monotonic() + 60
    while read_run(database, "run").state == RunState.RUNNING and time.monotonic() < end:
        steward.tick()
        time.sleep(0.05)


def steward_until(done: Callable[[], bool], **settings: str) -> int:
    """Run a steward process until something has come of it, for a minute at most; return its exit code on SIGTERM."""
    command = [sys.executable, "-m", "ludus.cli", "steward"]
    process = subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not done() and time.monotonic() < deadline:
            time.sleep(0.05)
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


def test_a_gap_in_reading_begins_the_watch_anew() -> None:
    watch = Watch(gap_seconds=5)

    assert [watch.observe(now) for now in (100, 104, 109)] == [0, 4, 9]
    assert watch.observe(115) == 0  # more than 5 s later: the host slept, or the clock jumped
    assert watch.observe(119) == 4
    assert watch.observe(118) == 0  # the clock went backwards
    watch.lose()
    assert watch.observe(119) == 0


def test_a_steward_that_has_just_begun_to_read_takes_nothing_away(database: Database, steward: Steward) -> None:
    expire(database)

    steward.tick()
    steward.tick()

    assert read_run(database, "run").state == RunState.RUNNING


def test_a_worker_that_renews_while_the_steward_watches_keeps_its_run(database: Database, steward: Steward) -> None:
    """After an outage every lease looks expired; the living renew before the steward acts."""
    ledger = expire(database)
    steward.tick()
    ledger.heartbeat(60, 0)

    watch_for(steward, 2 * LEASE)

    assert read_run(database, "run").state == RunState.RUNNING


def test_after_one_full_lease_of_watching_the_run_goes_to_another_worker(
    database: Database, steward: Steward, bell: RecordingBell
) -> None:
    expire(database)
    began = time.monotonic()

    watch_until_taken(steward, database)

    assert time.monotonic() - began > LEASE
    run = read_run(database, "run")
    assert run.state == RunState.RECOVERING
    assert bell.rung == [run.id]
    assert make_claim(database).epoch == 2


def test_an_outage_of_the_database_begins_the_watch_anew(
    database: Database, bell: RecordingBell, tmp_path: Path, clock: Clock
) -> None:
    """Both watches together are longer than a lease, each alone is far from it."""
    lease = 1.5
    values = {"worker": {"lease_seconds": lease, "heartbeat_seconds": lease / 3}}
    steward = Steward(database, bell, Settings(home=tmp_path, **values), clock)  # type: ignore[arg-type]
    expire(database)
    watch_for(steward, 0.6 * lease)
    unreachable = Database("postgresql+psycopg://nobody@127.0.0.1:9/none")
    healthy, steward._database = steward._database, unreachable
    steward.tick()
    steward._database = healthy

    watch_for(steward, 0.6 * lease)

    assert read_run(database, "run").state == RunState.RUNNING
    unreachable.close()


def test_two_stewards_charge_a_lost_worker_once(
    database: Database, bell: RecordingBell, settings: Settings, clock: Clock
) -> None:
    expire(database)
    stewards = [Steward(database, bell, settings, clock) for _ in range(2)]

    threads = [threading.Thread(target=watch_until_taken, args=(steward, database)) for steward in stewards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    run = read_run(database, "run")
    assert (run.state, run.restarts_without_progress) == (RunState.RECOVERING, 1)


def test_a_run_beyond_its_tokens_quota_says_so_until_one_of_them_ends(
    database: Database, bell: RecordingBell, tmp_path: Path, clock: Clock
) -> None:
    policy = {"runs_per_token": 1, "explain_seconds": 0.01}
    steward = Steward(database, bell, Settings(home=tmp_path, scheduling=policy), clock)  # type: ignore[arg-type]
    WorkerRegistry(database).register(WorkerInfo("host/1/0", "host", 1, "0"))
    first = make_ledger(database, name="first", owner="ada", token_id="tok_1")
    make_run(database, name="second", owner="not ada", token_id="tok_1")
    make_run(database, name="of another token", owner="ada", token_id="tok_2")
    time.sleep(0.02)

    steward.tick()
    clock.now += 5
    steward.tick()

    waits_for = read_run(database, "second").waits_for or ""
    assert waits_for.startswith("The token `tok_1`, which created this run, has 1 run in training")
    assert read_run(database, "of another token").waits_for is None
    first.move(RunState.CANCELLED)
    clock.now += 60
    steward.tick()
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


def look_for(steward: Steward, clock: Clock, seconds: float) -> None:
    """Let the steward look every five seconds."""
    for _ in range(int(seconds / 5)):
        clock.now += 5
        steward.tick()


def test_a_run_that_no_worker_serves_says_so_once_none_has_come_for_a_while(
    database: Database, steward: Steward, clock: Clock
) -> None:
    make_run(database, name="run")
    wait_long(database)

    look_for(steward, clock, 10)
    soon = obstacles(database, "run")
    look_for(steward, clock, 10)

    assert (soon, obstacles(database, "run")) == ([], ["no_worker_serves"])
    assert (read_run(database, "run").waits_for or "").startswith("No worker is there")


def test_a_run_whose_worker_died_says_nothing_of_workers_while_the_next_one_starts(
    database: Database, steward: Steward, clock: Clock
) -> None:
    make_ledger(database, name="run").release("released", "Its worker starts anew.")
    wait_long(database)

    look_for(steward, clock, 10)
    WorkerRegistry(database).register(WorkerInfo("new", "host", 2, "0"))
    steward.tick()
    make_claim(database, "new")
    look_for(steward, clock, 20)

    assert obstacles(database, "run") == []


def test_runs_that_wait_for_their_turn_say_nothing_of_workers_while_the_worker_starts_anew(
    database: Database, steward: Steward, clock: Clock
) -> None:
    make_ledger(database, name="first")
    make_run(database, name="second")
    wait_long(database)
    for number in range(3):
        WorkerRegistry(database).register(WorkerInfo(f"worker-{number}", "host", 1, "0"))
        look_for(steward, clock, 5)
        WorkerRegistry(database).stopped(f"worker-{number}")
        look_for(steward, clock, 10)

    assert obstacles(database, "second") == []


def test_a_worker_that_comes_between_the_look_and_the_word_is_seen(
    database: Database, steward: Steward, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(database, name="run")
    wait_long(database)
    look = WaitingRuns.uninformed
    seen: list[str] = []

    def look_and_be_overtaken(*arguments: Any, **named: Any) -> Sequence[str]:
        found = look(*arguments, **named)
        if found and not seen:
            seen.extend(found)
            WorkerRegistry(database).register(WorkerInfo("new", "host", 2, "0"))
        return found

    monkeypatch.setattr(WaitingRuns, "uninformed", look_and_be_overtaken)
    look_for(steward, clock, 20)

    assert seen == [read_run(database, "run").id]
    assert obstacles(database, "run") == []
    assert read_run(database, "run").waits_for is None


def test_old_answers_and_silent_workers_are_forgotten(database: Database, steward: Steward, clock: Clock) -> None:
    registry = WorkerRegistry(database)
    registry.register(WorkerInfo("old", "host", 1, "0.1.0"))
    registry.register(WorkerInfo("new", "host", 2, "0.1.0"))
    with database.write() as session:
        session.execute(text("UPDATE workers SET heartbeat_at = heartbeat_at - 100000 WHERE id = 'old'"))
        for key, age in [("old", 100_000), ("new", 10)]:
            session.add(IdempotencyKey(scope="POST /v1/runs", key=key, fingerprint="", created_at=now() - age))

    steward.tick()

    with database.read() as session:
        assert [worker.id for worker in WorkerRepository(session).list().items] == ["new"]
        assert session.scalars(text("SELECT key FROM idempotency_keys")).all() == ["new"]


def test_a_steward_runs_until_it_is_told_to_stop(database: Database, steward: Steward) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=steward.run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(10)

    assert not thread.is_alive()


def test_rounds_that_are_set_too_far_apart_for_the_lease_do_not_keep_runs_with_dead_workers(
    database: Database, bell: RecordingBell, settings: Settings
) -> None:
    rare = settings.model_copy(update={"steward": settings.steward.model_copy(update={"interval_seconds": 3600.0})})
    expire(database)
    stop = threading.Event()
    thread = threading.Thread(target=Steward(database, bell, rare).run, args=(stop,))
    thread.start()

    deadline = time.monotonic() + 20
    while read_run(database, "run").state != RunState.RECOVERING and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    thread.join(10)

    assert read_run(database, "run").state == RunState.RECOVERING


@pytest.mark.parametrize("answers", [True, pytest.param(False, marks=pytest.mark.long)], ids=["hangs", "away"])
def test_the_process_takes_runs_from_the_dead_and_rates_matches_although_the_broker_is_away_or_hangs(
    tmp_path: Path, answers: bool
) -> None:
    """Another run waits meanwhile, for which the steward would ring. It ends when told to."""
    with socket.socket() as broker:
        broker.bind(("127.0.0.1", 0))
        if answers:
            broker.listen()  # connections are taken, and nothing is ever said
        settings = {
            "LUDUS_HOME": str(tmp_path),
            "LUDUS_QUEUE__BROKER_URL": f"redis://127.0.0.1:{broker.getsockname()[1]}/0",
            "LUDUS_WORKER__LEASE_SECONDS": "1.5",
            "LUDUS_WORKER__HEARTBEAT_SECONDS": "0.5",
            "LUDUS_STEWARD__INTERVAL_SECONDS": "0.2",
            "LUDUS_STEWARD__RING_SECONDS": "0.2",
        }
        database = Database.from_settings(Settings(home=tmp_path).database)
        upgrade_database(database)
        make_player(database, name="played").matches([make_match(1), make_match(2)])
        make_ledger(database, name="orphan").heartbeat(-1, 0)
        make_run(database, name="waits")

        def found() -> tuple[str, int]:
            return read_run(database, "orphan").state, get_ladder(database, "played").rated_through

        code = steward_until(lambda: found() == (RunState.RECOVERING, 2), **settings)
        became = found()
        database.close()

    assert (became, code) == ((RunState.RECOVERING, 2), 0)
