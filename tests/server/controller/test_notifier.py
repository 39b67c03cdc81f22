"""The ringer: wakes workers when they are needed, and only then."""

from pathlib import Path

import pytest

from server.controller.notifier import WakeUpNotifier
from server.kit.db.database import Database
from server.kit.settings import Settings
from tests.factories import RecordingWakeUp, make_claim, make_run


class Clock:
    """A monotonic clock that the test winds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ringer(database: Database, wake_up: RecordingWakeUp, clock: Clock, tmp_path: Path) -> WakeUpNotifier:
    return WakeUpNotifier(database, wake_up, Settings(home=tmp_path), clock)


def test_what_the_controller_wants_rung_is_rung_at_once(ringer: WakeUpNotifier, wake_up: RecordingWakeUp) -> None:
    ringer.wake("run_1")
    ringer.wake("run_2")

    ringer.tick()

    assert wake_up.woken == ["run_1", "run_2"]


def test_a_run_that_waits_is_announced_again_within_five_seconds(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    run = make_run(database)
    ringer.tick()
    assert wake_up.woken == []  # its own ring is on the way

    for _ in range(12):
        clock.now += 1
        ringer.tick()

    assert wake_up.woken == [run.id] * 3  # after 4, 8 and 12 seconds


def test_rings_do_not_pile_up_while_all_workers_are_busy(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    make_run(database)
    wake_up.unheard = 1

    for _ in range(20):
        clock.now += 1
        ringer.tick()

    assert wake_up.woken == []


def test_a_run_that_was_claimed_is_not_announced(
    database: Database, ringer: WakeUpNotifier, wake_up: RecordingWakeUp, clock: Clock
) -> None:
    make_run(database)
    ringer.tick()
    make_claim(database)
    clock.now += 10

    ringer.tick()

    assert wake_up.woken == []
