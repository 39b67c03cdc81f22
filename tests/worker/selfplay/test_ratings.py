"""Elo as ML-Agents computes it, and what it conserves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.ladders import elo
from worker.selfplay.ratings import Ratings, rate

SIDES = st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=3)
GAMES = st.lists(st.tuples(SIDES, st.sampled_from([0.0, 0.5, 1.0])), max_size=40)


def ratings_of(snapshots: int, initial: float = 1200.0) -> Ratings:
    ratings = Ratings(initial)
    for number in range(snapshots):
        ratings.saved(number)
    return ratings


def test_equals_win_and_lose_half_a_point() -> None:
    ratings = ratings_of(1)

    assert rate(ratings, [(ratings, 0)], 1.0)

    assert (ratings.current, ratings.of(0)) == (1200.5, 1199.5)


def test_a_lead_of_400_is_ten_to_one() -> None:
    ratings = ratings_of(1)
    ratings.add(None, 400.0)

    assert elo.expected(1600.0, 1200.0) == pytest.approx(10 / 11)
    assert rate(ratings, [(ratings, 0)], 0.0)

    assert ratings.current == pytest.approx(1600.0 - 10 / 11)
    assert ratings.of(0) == pytest.approx(1200.0 + 10 / 11)


def test_a_policy_that_plays_itself_rates_nobody() -> None:
    ratings = ratings_of(1)

    assert not rate(ratings, [(ratings, None)], 1.0)

    assert (ratings.current, ratings.of(0)) == (1200.0, 1200.0)


def test_the_learning_policy_of_another_behavior_is_an_opponent_like_any() -> None:
    strikers, goalies = ratings_of(0), ratings_of(0)

    assert rate(strikers, [(goalies, None)], 1.0)

    assert (strikers.current, goalies.current) == (1200.5, 1199.5)


def test_of_several_opponents_each_counts_its_part() -> None:
    ratings = ratings_of(2)

    assert rate(ratings, [(ratings, 0), (ratings, 1)], 1.0)

    assert (ratings.current, ratings.of(0), ratings.of(1)) == (1200.5, 1199.75, 1199.75)


def test_nothing_is_rated_where_a_rating_is_forgotten() -> None:
    ratings = ratings_of(2)
    ratings.forget_before(1)

    assert not rate(ratings, [(ratings, 0), (ratings, 1)], 1.0)

    assert (ratings.current, ratings.of(0), ratings.of(1)) == (1200.0, None, 1200.0)


@given(GAMES, GAMES)
def test_matches_conserve_the_sum_of_all_ratings(
    own: list[tuple[list[int | None], float]], against: list[object]
) -> None:
    strikers, goalies = ratings_of(5), ratings_of(5, initial=900.0)
    total = strikers.total + goalies.total
    for sides, score in own:
        rate(strikers, [(strikers, side) for side in sides], score)
    for sides, score in against:  # type: ignore[misc]  # as `own`
        rate(strikers, [(goalies, side) for side in sides], score)

    assert strikers.total + goalies.total == pytest.approx(total, abs=1e-8)


def test_a_snapshot_begins_with_the_rating_of_the_policy_and_all_of_it_is_saved() -> None:
    ratings = ratings_of(1)
    rate(ratings, [(ratings, 0)], 1.0)
    ratings.saved(1)
    restored = Ratings(0.0)

    restored.load_state_dict(ratings.state_dict())

    assert [restored.of(side) for side in (None, 0, 1)] == [1200.5, 1199.5, 1200.5]
