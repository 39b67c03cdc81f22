"""The test that decides matches: its arithmetic, and how often it errs."""

import functools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.evaluation.sprt import SPRT, difference_of, estimate, most_likely, score_interval, score_of


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


GATES = 1000
MARGIN = 2.33 * math.sqrt(0.05 * 0.95 / GATES)
"""What chance adds to a rate of 0.05 in so many gates, with a probability of 1 %."""
TEST = SPRT(elo0=0.0, elo1=100.0)
STRONGER = score_of(100.0)


def share(decision: str | None, probabilities: list[float], limit: int = 3000) -> float:
    """Play gates whose results have these probabilities; return how many came to a decision."""
    random = np.random.default_rng(7)
    decide = functools.cache(TEST.decide)  # gates meet the same counts again and again
    found = 0
    for _ in range(GATES):
        counts = [0] * len(probabilities)
        decided = None
        for result in random.choice(len(probabilities), size=limit, p=probabilities):
            counts[result] += 1
            decided = decide(tuple(counts))
            if decided is not None:
                break
        found += decided == decision
    return found / GATES


@pytest.mark.long
@pytest.mark.parametrize(
    "probabilities",
    [
        pytest.param([0.35, 0.3, 0.35], id="games with draws", marks=pytest.mark.long),
        pytest.param([0.05, 0.2, 0.5, 0.2, 0.05], id="pairs"),
    ],
)
def test_a_thousand_gates_of_two_equal_policies_pass_no_more_often_than_stated(probabilities: list[float]) -> None:
    assert share("pass", probabilities) <= TEST.alpha + MARGIN


@pytest.mark.parametrize(
    "probabilities",
    [
        pytest.param([1 - STRONGER - 0.15, 0.3, STRONGER - 0.15], id="games with draws", marks=pytest.mark.long),
        # Two games of one seed, each won with the probability of a lead of 100 points.
        pytest.param(
            [(1 - STRONGER) ** 2, 0.0, 2 * STRONGER * (1 - STRONGER), 0.0, STRONGER**2],
            id="pairs without draws",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_thousand_gates_of_a_stronger_policy_fail_no_more_often_than_stated(probabilities: list[float]) -> None:
    assert share("fail", probabilities) <= TEST.beta + MARGIN


def test_the_bounds_are_walds() -> None:
    assert (TEST.lower, TEST.upper) == pytest.approx((math.log(0.05 / 0.95), math.log(0.95 / 0.05)))
    assert TEST.upper == pytest.approx(2.944438979)


def test_without_draws_the_ratio_is_that_of_two_coins() -> None:
    # Coins that show heads with 1/2 and with 0.640065: 60 heads of 100.
    expected = 60 * math.log(STRONGER / 0.5) + 40 * math.log((1 - STRONGER) / 0.5)

    assert TEST.llr([40, 0, 60]) == pytest.approx(expected, abs=0.01)  # 0.001 draws are always counted


def test_results_that_both_hypotheses_explain_alike_weigh_nothing() -> None:
    symmetric = SPRT(elo0=-20.0, elo1=20.0)

    assert symmetric.llr([30, 40, 30]) == pytest.approx(0.0, abs=1e-9)
    assert symmetric.llr([0, 0, 0]) == 0.0


def test_draws_alone_speak_for_no_lead() -> None:
    assert TEST.decide([0, 200, 0]) == "fail"
    assert SPRT(elo0=-100.0, elo1=0.0).decide([0, 200, 0]) == "pass"


def test_pairs_need_fewer_games_where_openings_favour_a_side() -> None:
    # The first side always wins: single games look like coins, and pairs always bring one point.
    assert TEST.decide([20, 0, 20]) is None
    assert TEST.decide([0, 0, 20, 0, 0]) == "fail"


@given(
    st.lists(st.integers(1, 1000), min_size=3, max_size=3) | st.lists(st.integers(1, 1000), min_size=5, max_size=5),
    st.floats(0.02, 0.98),
)
def test_the_likeliest_distribution_is_one_and_has_the_mean(counts: list[int], mean: float) -> None:
    probabilities = most_likely(counts, mean)

    scores = np.linspace(0.0, 1.0, len(counts))
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-9)
    assert min(probabilities) > 0.0
    assert np.dot(probabilities, scores) == pytest.approx(mean, abs=1e-9)


@given(st.lists(st.integers(1, 1000), min_size=3, max_size=3), st.floats(0.1, 0.9), st.floats(0.0, 0.1))
def test_no_other_distribution_of_the_mean_is_likelier(counts: list[int], mean: float, more_draws: float) -> None:
    found = most_likely(counts, mean)
    # Any other one of this mean has more draws and fewer decided games, or the other way round.
    limit = 0.99 * min(found[0], found[1], found[2])
    for shift in (more_draws * limit, -more_draws * limit):
        other = [found[0] - shift / 2, found[1] + shift, found[2] - shift / 2]

        assert likelihood(counts, other) <= likelihood(counts, found) + 1e-6


def likelihood(counts: list[int], probabilities: list[float]) -> float:
    """Return the logarithm."""
    return sum(count * math.log(each) for count, each in zip(counts, probabilities, strict=True))
