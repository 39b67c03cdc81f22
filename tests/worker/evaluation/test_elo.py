"""Elo differences against known values."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.evaluation.elo import difference_of, estimate, score_interval, score_of


@pytest.mark.parametrize(("lead", "score"), [(0.0, 0.5), (100.0, 0.640065), (200.0, 0.759747), (-400.0, 1 / 11)])
def test_leads_are_worth_the_scores_of_the_tables(lead: float, score: float) -> None:
    assert score_of(lead) == pytest.approx(score, abs=1e-6)
    assert difference_of(score_of(lead)) == pytest.approx(lead, abs=1e-6)


def test_a_perfect_score_is_beyond_any_lead() -> None:
    assert (difference_of(0.0), difference_of(1.0)) == (None, None)


def test_without_draws_the_interval_is_wilsons() -> None:
    # 60 wins and 40 losses: Wilson's interval of 60 of 100 is 0.50200 to 0.69060.
    found = estimate([40, 0, 60])

    assert found.elo == pytest.approx(70.4, abs=0.1)
    assert found.low == pytest.approx(difference_of(0.50200), abs=0.05)
    assert found.high == pytest.approx(difference_of(0.69060), abs=0.05)


def test_with_draws_the_interval_is_tangos() -> None:
    # Of n draws alone, Tango's interval of the difference between wins and losses is +-z^2 / (n + z^2), z = 1.96.
    for draws in (1, 6, 50):
        low, high = score_interval([0, draws, 0])

        reach = 1.959964**2 / (draws + 1.959964**2) / 2
        assert (low, high) == pytest.approx((0.5 - reach, 0.5 + reach), abs=3e-4)


def test_six_draws_leave_room_for_a_lead() -> None:
    found = estimate([0, 6, 0])

    assert found.elo == 0.0
    assert (found.low, found.high) == pytest.approx((-143.3, 143.3), abs=0.1)


def test_pairs_that_always_bring_one_point_leave_room_for_a_lead() -> None:
    six, thirty = estimate([0, 0, 6, 0, 0]), estimate([0, 0, 30, 0, 0])

    assert (six.low, six.high) == pytest.approx((-143.3, 143.3), abs=0.1)
    assert (thirty.low, thirty.high) == pytest.approx((-39.6, 39.6), abs=0.1)


@pytest.mark.parametrize(("wins", "low"), [(1, -233.7), (6, 77.5), (200, 686.6)])
def test_a_perfect_score_bounds_the_lead_on_one_side_only(wins: int, low: float) -> None:
    won, lost = estimate([0, 0, wins]), estimate([wins, 0, 0])

    assert (won.elo, won.high) == (None, None)
    assert won.low == pytest.approx(low, abs=0.1)
    assert (lost.elo, lost.low) == (None, None)
    assert lost.high == pytest.approx(-low, abs=0.1)


@pytest.mark.parametrize("games", [6, 12, pytest.param(30, marks=pytest.mark.long)])
def test_the_interval_holds_the_true_score_about_as_often_as_it_says(games: int) -> None:
    """Exact: the probabilities of all results whose interval holds the true score are added up."""
    intervals = {
        (wins, draws): score_interval([games - wins - draws, draws, wins])
        for wins in range(games + 1)
        for draws in range(games + 1 - wins)
    }

    coverages = []
    for win, draw in [(w / 10, d / 10) for w in range(11) for d in range(11 - w)]:
        score = win + draw / 2
        coverages.append(
            sum(
                math.comb(games, wins)
                * math.comb(games - wins, draws)
                * win**wins
                * draw**draws
                * max(1 - win - draw, 0.0) ** (games - wins - draws)
                for (wins, draws), (low, high) in intervals.items()
                if low - 1e-9 <= score <= high + 1e-9
            )
        )

    assert fmean(coverages) > 0.95
    assert min(coverages) > 0.91


@pytest.mark.long
def test_the_interval_of_pairs_holds_the_true_score_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    for probabilities in ([0.05, 0.1, 0.6, 0.15, 0.1], [0.0, 0.0, 0.9, 0.1, 0.0], [0.0, 0.05, 0.05, 0.1, 0.8]):
        score = float(np.dot(probabilities, np.linspace(0, 1, 5)))
        results, times = np.unique(random.multinomial(10, probabilities, 1000), axis=0, return_counts=True)
        intervals = [score_interval(counts.tolist()) for counts in results]

        # 95 % of 1,000 are 950, with a standard deviation of 6.9.
        held = sum(count for count, (low, high) in zip(times, intervals, strict=True) if low <= score <= high)
        assert held > 920


def test_nothing_is_estimated_of_nothing() -> None:
    assert estimate([0, 0, 0]) == (None, None, None)


@given(st.lists(st.integers(0, 100), min_size=3, max_size=5).filter(lambda counts: len(counts) != 4 and sum(counts)))
def test_swapping_sides_swaps_the_sign(counts: list[int]) -> None:
    here, there = estimate(counts), estimate(counts[::-1])

    for one, other in ((here.elo, there.elo), (here.low, there.high)):
        assert (one is None) == (other is None)
        assert one is None or other is None or one == pytest.approx(-other, abs=1e-6)
