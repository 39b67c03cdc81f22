"""Elo differences against known values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.assessment.elo import difference_of, estimate, score_of


@pytest.mark.parametrize(("lead", "score"), [(0.0, 0.5), (100.0, 0.640065), (200.0, 0.759747), (-400.0, 1 / 11)])
def test_leads_are_worth_the_scores_of_the_tables(lead: float, score: float) -> None:
    assert score_of(lead) == pytest.approx(score, abs=1e-6)
    assert difference_of(score_of(lead)) == pytest.approx(lead, abs=1e-6)


def test_a_perfect_score_is_beyond_any_lead() -> None:
    assert (difference_of(0.0), difference_of(1.0)) == (None, None)


def test_the_interval_is_that_of_the_mean_score() -> None:
    # 60 wins and 40 losses: 0.6, deviation sqrt(0.24), error sqrt(0.24 / 100) = 0.04899, times 1.96: 0.504 to 0.696.
    found = estimate([40, 0, 60])

    assert found.elo == pytest.approx(70.4, abs=0.1)
    assert found.low == pytest.approx(difference_of(0.6 - 1.959964 * 0.0489898), abs=1e-3)
    assert found.high == pytest.approx(difference_of(0.6 + 1.959964 * 0.0489898), abs=1e-3)


def test_pairs_that_always_bring_one_point_leave_no_doubt() -> None:
    assert estimate([0, 0, 30, 0, 0]) == (0.0, 0.0, 0.0)


def test_nothing_is_estimated_of_nothing() -> None:
    assert estimate([0, 0, 0]) == (None, None, None)


@given(st.lists(st.integers(0, 100), min_size=3, max_size=5).filter(lambda counts: len(counts) != 4 and sum(counts)))
def test_swapping_sides_swaps_the_sign(counts: list[int]) -> None:
    here, there = estimate(counts), estimate(counts[::-1])

    for one, other in ((here.elo, there.elo), (here.low, there.high)):
        assert (one is None) == (other is None)
        assert one is None or other is None or one == pytest.approx(-other, abs=1e-6)
