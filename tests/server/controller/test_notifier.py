"""The notifier: wakes workers when they are needed, and only then."""

from pathlib import Path

import pytest

from server.controller.notifier import WakeUpNotifier
from server.kit.db.database import Database
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import SchedulingSettings, Settings
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.clock import Clock
from tests.factories import CONFIG, RecordingWakeUp, make_claim, make_run
from tests.server.kit.test_queue import consumers, wait_for


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def ringer(database: Database, wake_up: RecordingWakeUp, clock: Clock, tmp_path: Path) -> WakeUpNotifier:
    return WakeUpNotifier(database, wake_up, Settings(home=tmp_path), clock)


def add_slots(database: Database, *labels: str, count: int = 1) -> None:
    """Register idle slots with these labels."""
    for number in range(count):
        identity = f"{'-'.join(labels) or 'plain'}-{number}/1/0"
        WorkerRegistry(database).register(WorkerInfo(identity, "host", 1, "0", labels=labels))


def ticks(ringer: WakeUpNotifier, clock: Clock, count: int) -> None:
    """Let so many seconds pass, with a look in each."""
    for _ in range(count):
        clock.now += 1
        ringer.tick()


def test_what_the_controller_wants_rung_is_rung_at_once(ringer: WakeUpNotifier, wake_up: RecordingWakeUp) -> None:
    ringer.wake("run_1")
    ringer.wake("run_2")

    ringer.tick()

    assert wake_up.woken == ["run_1", "run_2"]


def test_a_run_that_waits_is_announced_again_within_five_seconds(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    run = make_run(database)
    ringer.tick()
    assert wake_up.woken == []  # its own ring is on the way

    ticks(ringer, clock, 12)

    assert wake_up.woken == [run.id] * 3  # after 4, 8 and 12 seconds


def test_rings_do_not_pile_up_while_all_workers_are_busy(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    make_run(database)
    wake_up.unheard = 1

    ticks(ringer, clock, 20)

    assert wake_up.woken == []


def test_a_run_that_was_claimed_is_not_announced(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database)
    make_run(database)
    ringer.tick()
    make_claim(database)

    ticks(ringer, clock, 10)

    assert wake_up.woken == []


def demanding(*labels: str) -> dict[str, object]:
    return {**CONFIG, "resources": {"labels": list(labels)}}


def test_a_run_that_no_slot_serves_wakes_no_idle_slot_until_one_comes_that_does(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=5)
    run = make_run(database, config=demanding("moon"))

    ticks(ringer, clock, 60)
    assert wake_up.woken == []

    add_slots(database, "moon")
    ticks(ringer, clock, 5)
    assert set(wake_up.woken) == {run.id}


def test_a_run_that_a_quota_holds_back_wakes_no_idle_slot(
    database: Database, wake_up: RecordingWakeUp, clock: Clock, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, scheduling=SchedulingSettings(runs_per_project=1))
    add_slots(database, count=5)
    make_run(database)
    make_claim(database)
    make_run(database)

    ticks(WakeUpNotifier(database, wake_up, settings, clock), clock, 60)

    assert wake_up.woken == []


@pytest.mark.parametrize(("runs", "slots", "messages"), [(2, 5, 2), (5, 2, 2), (3, 0, 0)])
def test_no_more_slots_are_woken_than_there_are_runs_nor_messages_sent_than_idle_slots(
    database: Database,
    ringer: WakeUpNotifier,
    wake_up: RecordingWakeUp,
    clock: Clock,
    runs: int,
    slots: int,
    messages: int,
) -> None:
    add_slots(database, count=slots)
    for number in range(runs):
        make_run(database, name=f"run-{number}")

    ticks(ringer, clock, 5)

    assert len(wake_up.woken) == messages


def test_where_slots_differ_one_that_serves_a_run_hears_of_it_whichever_are_woken_first(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    add_slots(database, count=3)
    add_slots(database, "moon", count=2)
    run = make_run(database, config=demanding("moon"))

    ticks(ringer, clock, 5)

    assert wake_up.woken == [run.id] * 5


@pytest.mark.long
def test_celery_s_workers_hear_nothing_of_a_run_that_they_do_not_serve(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path)
    ringer = WakeUpNotifier(database, WakeUpQueue(make_celery(settings)), settings, clock)
    add_slots(database, count=2)
    make_run(database, config=demanding("moon"))
    with consumers(settings.home, 2) as outputs:
        ticks(ringer, clock, 30)
        run = make_run(database)
        ticks(ringer, clock, 5)
        assert wait_for(outputs, 1, 60) == [run.id]
