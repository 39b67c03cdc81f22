"""When a worker ends by itself."""

import pytest

from tests.clock import Clock
from worker.host.ending import Limits, SharedState, Watchdog, WorkerEnd


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_idle_worker_ends_after_its_time_and_a_busy_one_begins_it_anew(clock: Clock) -> None:
    end = WorkerEnd(Limits(idle_seconds=60), clock)
    answers = []

    for busy in (False, False, True, False, False, False):
        clock.now += 30
        answers.append(end.reason(busy=busy, finished=False))

    over = "no slot has had a run for 60 s"
    assert answers == [None, over, None, None, over, over]


def test_a_worker_of_one_run_ends_after_it_and_waits_for_it_without_limit(clock: Clock) -> None:
    end = WorkerEnd(Limits(once=True), clock)

    clock.now += 1e6

    assert end.reason(busy=False, finished=False) is None
    assert end.reason(busy=False, finished=True) == "its only run was executed"
    assert end.reason(busy=True, finished=True, lost=True) == "the process of its slot died with its only run"


def test_a_worker_of_one_run_with_an_idle_time_also_ends_if_no_run_comes(clock: Clock) -> None:
    end = WorkerEnd(Limits(once=True, idle_seconds=60), clock)

    clock.now += 59
    assert end.reason(busy=False, finished=False) is None
    clock.now += 1
    assert end.reason(busy=False, finished=False) == "no slot has had a run for 60 s"


def test_without_options_nothing_ends_a_worker() -> None:
    assert not Limits()
    assert Limits(once=True)
    assert Limits(idle_seconds=0.0)


def test_slots_get_on_together_or_the_worker_does_not() -> None:
    shared = SharedState(2)
    shared.set_busy(1, busy=True)
    assert not shared.all_turn(60), "neither has begun"

    shared.turn(0)
    assert not shared.all_turn(60)
    shared.turn(1)
    assert shared.all_turn(60)
    assert shared.busy
    shared.set_busy(1, busy=False)
    assert not shared.busy, "turns are no runs"

    assert not shared.all_turn(0)


def look(watchdog: Watchdog, clock: Clock, *looks: tuple[bool, int]) -> list[bool]:
    """Look every 5 s."""
    answers = []
    for idle, pending in looks:
        answers.append(watchdog.stalled(idle=idle, pending=pending))
        clock.now += 5
    return answers


def test_messages_that_lie_beside_an_idle_slot_for_too_long_are_a_stall(clock: Clock) -> None:
    assert look(Watchdog(10, clock), clock, (True, 1), (True, 2), (True, 1)) == [False, False, True]


def test_a_busy_slot_an_empty_queue_or_a_message_that_came_begin_the_wait_anew(clock: Clock) -> None:
    watchdog = Watchdog(10, clock)

    assert look(watchdog, clock, (True, 1), (True, 1), (False, 1), (True, 1), (True, 0), (True, 1)) == [False] * 6
    assert look(watchdog, clock, (True, 1)) == [False]
    watchdog.received()
    assert look(watchdog, clock, (True, 1), (True, 1)) == [False, False]
    assert look(watchdog, clock, (True, 1)) == [True]


def test_after_an_outage_in_which_nobody_could_look_the_wait_begins_anew(clock: Clock) -> None:
    watchdog = Watchdog(10, clock)

    assert look(watchdog, clock, (True, 1)) == [False]
    clock.now += 60
    assert look(watchdog, clock, (True, 1), (True, 1), (True, 1)) == [False, False, True]
