"""The test that decides matches: its arithmetic, and how often it errs."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.evaluation.elo import score_of
from worker.evaluation.likelihood import most_likely
from worker.evaluation.sprt import SPRT

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


@pytest.mark.parametrize(
    "probabilities",
    [
        pytest.param([0.5, 0.0, 0.5], id="games without draws", marks=pytest.mark.long),
        pytest.param([0.35, 0.3, 0.35], id="games with draws", marks=pytest.mark.long),
        pytest.param([0.05, 0.2, 0.5, 0.2, 0.05], id="pairs"),
    ],
)
def test_a_thousand_gates_of_two_equal_policies_pass_no_more_often_than_stated(probabilities: list[float]) -> None:
    assert share("pass", probabilities) <= TEST.alpha + MARGIN


@pytest.mark.parametrize(
    "probabilities",
    [
        pytest.param([1 - STRONGER, 0.0, STRONGER], id="games without draws", marks=pytest.mark.long),
        pytest.param([1 - STRONGER - 0.15, 0.3, STRONGER - 0.15], id="games with draws", marks=pytest.mark.long),
        # Two games of one seed, each won with the probability of a lead of 100 points.
        pytest.param(
            [(1 - STRONGER) ** 2, 0.0, 2 * STRONGER * (1 - STRONGER), 0.0, STRONGER**2], id="pairs without draws"
        ),
    ],
)
def test_a_thousand_gates_of_a_stronger_policy_fail_no_more_often_than_stated(probabilities: list[float]) -> None:
    assert share("fail", probabilities) <= TEST.beta + MARGIN


def test_a_careless_test_is_caught_by_the_same_simulation() -> None:
    careless = SPRT(0.0, 100.0, alpha=0.3, beta=0.3)
    random = np.random.default_rng(7)
    passed = 0
    for _ in range(200):
        counts = [0, 0, 0]
        while (decided := careless.decide(counts)) is None:
            counts[random.choice(3, p=[0.35, 0.3, 0.35])] += 1
        passed += decided == "pass"

    assert passed / 200 > 0.05 + MARGIN


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
