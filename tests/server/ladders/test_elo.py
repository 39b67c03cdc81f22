"""ML-Agents' Elo."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.ladders.elo import change, expected

RATINGS = st.floats(-1e6, 1e6)


def test_equals_can_expect_half_a_win() -> None:
    assert expected(1200.0, 1200.0) == 0.5


def test_a_lead_of_400_makes_a_win_ten_times_as_likely_as_a_loss() -> None:
    assert expected(1600.0, 1200.0) == pytest.approx(10 / 11)


def test_a_win_over_an_equal_earns_half_a_point() -> None:
    assert change(1.0, 1200.0, 1200.0) == 0.5


def test_a_loss_against_the_far_weaker_costs_almost_the_whole_point() -> None:
    # E = 1 / (1 + 10^(-800/400)) = 100/101
    assert change(0.0, 2000.0, 1200.0) == pytest.approx(-100 / 101)


@given(RATINGS, RATINGS)
def test_expectations_of_both_sides_add_up_to_one(rating: float, opponent: float) -> None:
    assert expected(rating, opponent) + expected(opponent, rating) == pytest.approx(1.0)


@given(RATINGS, RATINGS, st.sampled_from([0.0, 0.5, 1.0]))
def test_no_match_is_worth_more_than_one_point(rating: float, opponent: float, score: float) -> None:
    assert abs(change(score, rating, opponent)) <= 1.0
