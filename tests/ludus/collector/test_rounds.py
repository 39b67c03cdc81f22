"""Permits and debts of one collector."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.rounds import Rounds


def granted(steps: int, number: int = 0) -> Rounds:
    rounds = Rounds()
    rounds.grant(number, steps, size=steps, closed=True)
    return rounds


def test_answers_within_the_permits_count_into_the_round() -> None:
    rounds = granted(10)

    assert rounds.take(4) == [(0, 4)]
    assert (rounds.left, rounds.outstanding[0]) == (6, 4)


def test_what_exceeds_the_round_is_borrowed_from_the_next_ones() -> None:
    rounds = granted(4)

    assert rounds.take(11) == [(0, 4), (1, 4), (2, 3)]


def test_a_debt_shortens_the_round_that_it_was_borrowed_from() -> None:
    rounds = granted(4)
    rounds.take(6)
    rounds.returned(0, 4)

    rounds.grant(1, 4, size=4, closed=True)

    assert rounds.left == 2


def test_the_round_is_drained_when_every_answer_is_back() -> None:
    rounds = granted(2)
    rounds.take(2)
    rounds.returned(0, 1)
    assert not rounds.drained

    rounds.returned(0, 1)

    assert rounds.drained


def test_an_open_round_is_not_drained_because_more_may_come() -> None:
    rounds = Rounds()
    rounds.grant(0, 2, size=10, closed=False)
    rounds.take(2)
    rounds.returned(0, 2)

    assert not rounds.drained


def test_lost_steps_may_be_answered_again() -> None:
    rounds = granted(5)
    rounds.take(7)

    rounds.refund(0, 3)
    rounds.refund(1, 1)

    assert (rounds.left, rounds.debt[1]) == (3, 1)


def test_a_released_straggler_counts_into_the_next_round() -> None:
    rounds = granted(3)
    rounds.take(3)

    assert rounds.release(1) == [(1, 1)]

    assert (rounds.left, rounds.debt[1], rounds.outstanding[0], rounds.outstanding[1]) == (1, 1, 2, 1)


def test_permits_of_a_round_that_has_ended_are_ignored() -> None:
    rounds = granted(3)
    rounds.grant(1, 3, size=3, closed=True)

    rounds.grant(0, 5, size=3, closed=True)

    assert (rounds.number, rounds.left) == (1, 3)


@given(st.integers(1, 20), st.lists(st.integers(1, 50), max_size=30))
def test_each_round_takes_its_size_whatever_the_messages_are(size: int, messages: list[int]) -> None:
    rounds = granted(size)
    taken: dict[int, int] = {}

    for message in messages:
        for number, count in rounds.take(message):
            taken[number] = taken.get(number, 0) + count

    assert all(count == size for number, count in taken.items() if number < max(taken))
    assert sorted(taken) == list(range(len(taken)))


@given(st.integers(1, 20), st.integers(1, 5), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_collectors_never_borrow_more_of_a_round_than_there_is(size: int, count: int, asked: list[int]) -> None:
    collectors = [Rounds(index, count) for index in range(count)]
    for rounds, decisions in zip(collectors, asked, strict=False):
        rounds.grant(3, 0, size=size, closed=True)
        tags = rounds.take(decisions)
        assert sum(steps for _, steps in tags) == decisions

    debts = sum((rounds.debt for rounds in collectors), Counter[int]())

    assert all(steps <= size for steps in debts.values())


def test_a_collector_tells_what_it_borrows_and_what_of_it_is_lost() -> None:
    rounds = Rounds(0, 2)
    rounds.grant(0, 4, size=4, closed=True)
    rounds.take(7)  # 4 now, and 2 of round 1 and 1 of round 2: half of a round is this collector's

    assert rounds.take_borrowed() == [(1, 2), (2, 1)]
    rounds.refund(1, 1)
    assert rounds.take_borrowed() == [(1, -1)]
    assert rounds.take_borrowed() == []


def test_released_stragglers_never_make_a_later_round_larger_than_it_is() -> None:
    rounds = granted(2)
    rounds.take(3)  # one of them in round 1

    assert rounds.release(2) == [(1, 1), (2, 1)]
    assert rounds.left == 2
