"""Quota, outstanding steps and overdraft of one collector."""

from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.step_quota import StepQuota


def granted(steps: int, number: int = 0) -> StepQuota:
    quota = StepQuota()
    quota.grant(number, steps, size=steps)
    return quota


def test_answers_within_the_quota_count_into_the_round() -> None:
    quota = granted(10)

    assert quota.take(4) == [(0, 4)]
    assert (quota.left, quota.outstanding[0]) == (6, 4)


def test_answers_beyond_the_quota_count_into_the_next_rounds() -> None:
    quota = granted(4)

    assert quota.take(11) == [(0, 4), (1, 4), (2, 3)]


def test_an_overdraft_reduces_the_quota_of_its_round() -> None:
    quota = granted(4)
    quota.take(6)
    quota.returned(0, 4)

    quota.grant(1, 4, size=4)

    assert quota.left == 2


def test_the_quota_is_complete_when_every_answered_step_has_returned() -> None:
    quota = granted(2)
    quota.take(2)
    quota.returned(0, 1)
    assert not quota.complete

    quota.returned(0, 1)

    assert quota.complete


def test_a_quota_that_is_extended_is_complete_only_when_the_extension_is_used() -> None:
    quota = granted(2)
    quota.take(2)
    quota.returned(0, 2)

    quota.grant(0, 3, size=10)

    assert not quota.complete
    assert quota.take(3) == [(0, 3)]


def test_lost_steps_may_be_answered_again() -> None:
    quota = granted(5)
    quota.take(7)

    quota.refund(0, 3)
    quota.refund(1, 1)

    assert (quota.left, quota.overdraft[1]) == (3, 1)


def test_nothing_of_an_ended_round_is_answered_not_even_lost_steps() -> None:
    quota = granted(5)
    quota.take(3)

    quota.end(0)
    quota.returned(0, 3)
    quota.refund(0, 3)

    assert (quota.left, quota.complete) == (0, True)


def test_the_end_of_an_earlier_round_changes_nothing() -> None:
    quota = granted(5)
    quota.grant(1, 5, size=5)

    quota.end(0)

    assert (quota.left, quota.complete) == (5, False)


def test_a_released_straggler_counts_into_the_next_round() -> None:
    quota = granted(3)
    quota.take(3)

    assert quota.release(1) == [(1, 1)]

    assert (quota.left, quota.overdraft[1], quota.outstanding[0], quota.outstanding[1]) == (1, 1, 2, 1)


def test_a_grant_for_a_round_that_is_over_is_ignored() -> None:
    quota = granted(3)
    quota.grant(1, 3, size=3)

    quota.grant(0, 5, size=3)

    assert (quota.number, quota.left) == (1, 3)


@given(st.integers(1, 20), st.lists(st.integers(1, 50), max_size=30))
def test_each_round_takes_its_size_whatever_the_messages_are(size: int, messages: list[int]) -> None:
    quota = granted(size)
    taken: dict[int, int] = {}

    for message in messages:
        for number, count in quota.take(message):
            taken[number] = taken.get(number, 0) + count

    assert all(count == size for number, count in taken.items() if number < max(taken))
    assert sorted(taken) == list(range(len(taken)))


def test_released_stragglers_never_make_a_later_round_larger_than_it_is() -> None:
    quota = granted(2)
    quota.take(3)  # one of them in round 1

    assert quota.release(2) == [(1, 1), (2, 1)]
    assert quota.left == 2
