"""A worker that stops taking messages is noticed, and only such a one."""

import pytest

from tests.clock import Clock
from worker.host.watchdog import Watchdog


@pytest.fixture
def clock() -> Clock:
    return Clock()


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
