"""Estimates and intervals are those of rliable; nothing is called better that may be chance."""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.statistics import (
    EXACT_RUNS,
    Estimate,
    Floats,
    as_scores,
    compare_groups,
    interquartile_mean,
    interval,
    mean,
    mean_interval,
    percentiles,
    performance_profile,
    probability_of_improvement,
    rank_test,
    resampled,
)

A = [[0.31, 0.62, 0.50], [0.44, 0.71, 0.55], [0.29, 0.80, 0.47], [0.38, 0.66, 0.61], [0.52, 0.58, 0.52]]
"""Five runs of three tasks."""
B = [[0.41, 0.70, 0.49], [0.47, 0.83, 0.66], [0.35, 0.77, 0.58], [0.44, 0.69, 0.63]]
"""Four runs of the same tasks."""
LONG_A = [[410.0], [395.0], [432.0], [388.0], [421.0]]
LONG_B = [[480.0], [455.0], [421.0], [499.0], [471.0], [463.0], [500.0]]
"""Runs of one task; 421 is in both groups."""
THRESHOLDS = [0.3, 0.44, 0.5, 0.62, 0.7, 0.9]

WHOLE = st.integers(-1000, 1000).map(float)
"""Scores whose sums are exact, and which are often equal."""


@st.composite
def matrices(draw: st.DrawFn, tasks: int = 2) -> Floats:
    rows = draw(st.lists(st.lists(WHOLE, min_size=tasks, max_size=tasks), min_size=1, max_size=8))
    return np.array(rows)


# By `rliable.metrics.aggregate_iqm` (1.2.0, with numpy 2.4.6 and scipy 1.17.1).
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (A, 0.5344444444444444),
        (B, 0.5866666666666667),
        (LONG_A, 408.6666666666667),
        (LONG_B, 473.6),
        ([[1.0, 5.0, 9.0]], 5.0),
    ],
)
def test_the_interquartile_mean_is_that_of_rliable(scores: Sequence[Sequence[float]], expected: float) -> None:
    assert float(interquartile_mean(np.array(scores))) == pytest.approx(expected, rel=1e-14)


# By `rliable.metrics.probability_of_improvement`.
@pytest.mark.parametrize(
    ("scores", "others", "expected"),
    [(B, A, 0.7083333333333334), (LONG_B, LONG_A, 0.9571428571428572), ([[1.0], [2.0]], [[2.0], [0.0]], 0.625)],
)
def test_the_probability_of_improvement_is_that_of_rliable(
    scores: Sequence[Sequence[float]], others: Sequence[Sequence[float]], expected: float
) -> None:
    assert float(probability_of_improvement(np.array(scores), np.array(others))) == pytest.approx(expected, rel=1e-14)


# By `rliable.library.score_distributions` of A.
def test_the_performance_profile_is_that_of_rliable() -> None:
    expected = [0.9333333333333333, 0.7333333333333333, 0.6, 0.2, 0.13333333333333333, 0.0]

    assert performance_profile(np.array(A), np.array(THRESHOLDS)).tolist() == pytest.approx(expected, rel=1e-14)


@given(matrices(), st.randoms(use_true_random=False))
def test_estimates_do_not_depend_on_the_order_of_runs_and_follow_shifts(scores: Floats, random: Random) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)

    for estimate in (mean, interquartile_mean):
        assert estimate(scores[order]) == pytest.approx(estimate(scores))
        assert estimate(scores + 7.0) == pytest.approx(estimate(scores) + 7.0)
        assert estimate(-scores) == pytest.approx(-estimate(scores))
        assert scores.min() <= estimate(scores) <= scores.max()


@given(matrices(), matrices())
def test_improvements_of_both_sides_add_up_to_one(scores: Floats, others: Floats) -> None:
    there, back = probability_of_improvement(scores, others), probability_of_improvement(others, scores)

    assert there + back == pytest.approx(1.0)
    assert probability_of_improvement(scores, scores) == pytest.approx(0.5)
    assert probability_of_improvement(scores + 5000.0, others) == 1.0


@given(matrices())
def test_a_profile_falls_from_all_runs_to_none(scores: Floats) -> None:
    profile = performance_profile(scores, np.array([-2000.0, *np.sort(scores, axis=None)]))

    assert profile[0] == 1.0
    assert profile[-1] == 0.0
    assert (np.diff(profile) <= 0.0).all()


@given(matrices(), matrices())
def test_resamples_in_front_have_an_estimate_each(scores: Floats, others: Floats) -> None:
    many, more = np.stack([scores, scores + 1.0]), np.stack([others, others])

    assert interquartile_mean(many).tolist() == [interquartile_mean(each) for each in many]
    assert probability_of_improvement(many, more).tolist() == [
        probability_of_improvement(each, others) for each in many
    ]
    assert performance_profile(many, np.array([0.0, 1.0])).shape == (2, 2)


def test_scores_of_one_task_are_a_column() -> None:
    assert as_scores([1.0, 2.0]).tolist() == [[1.0], [2.0]]
    assert as_scores(np.array([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]


def ends(values: list[float], **options: Any) -> tuple[float, float]:
    """Return the interval of a mean that has one."""
    bounds = mean_interval(values, **options)
    assert bounds is not None
    return bounds


def test_the_interval_of_a_large_sample_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 400)

    low, high = ends(values.tolist())

    error = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.03)


def test_it_holds_the_true_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(2)
    samples = random.binomial(1, 0.7, (300, 100)).astype(float)

    held = 0
    for number, sample in enumerate(samples):
        low, high = ends(sample.tolist(), resamples=500, seed=number)
        held += low <= 0.7 <= high

    # 95 % of 300 are 285, with a standard deviation of 3.8; intervals of so small samples are a little narrow.
    assert 270 <= held <= 297


def test_more_confidence_is_a_wider_interval() -> None:
    values = [0.0, 1.0, 2.0, 5.0]

    narrow, wide = ends(values, confidence=0.5), ends(values, confidence=0.99)

    assert wide[0] < narrow[0] < 2.0 < narrow[1] < wide[1]


def test_values_that_are_all_alike_leave_no_width() -> None:
    assert mean_interval([3.0] * 5) == (3.0, 3.0)


def test_a_single_value_has_no_interval() -> None:
    assert mean_interval([3.0]) is None


def test_the_same_values_have_the_same_interval() -> None:
    values = np.random.default_rng(3).normal(size=50).tolist()

    assert mean_interval(values) == mean_interval(values)


def test_more_values_than_are_drawn_at_once_are_possible() -> None:
    values = np.linspace(0.0, 1.0, 1_100_000).tolist()

    low, high = ends(values, resamples=3)

    assert 0.499 < low <= high < 0.501


def test_no_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="there are no scores"):
        mean_interval([])


# By rliable 1.2.0 (arch 7.2.0, numpy 2.4.6, scipy 1.17.1): `library.get_interval_estimates` with reps=50000 of
# `lambda scores: np.array([metrics.aggregate_iqm(scores)])`.
@pytest.mark.parametrize(
    ("scores", "low", "high"),
    [
        (A, 0.4977777777777778, 0.5677777777777778),
        (B, 0.5433333333333333, 0.625),
        (LONG_A, 390.3333333333333, 428.3333333333333),
        (LONG_B, 447.8, 491.6),
    ],
)
def test_intervals_of_the_interquartile_mean_are_those_of_rliable(
    scores: list[list[float]], low: float, high: float
) -> None:
    found = interval(np.array(scores), interquartile_mean, resamples=50_000)

    assert found is not None
    # Resamples of so few runs have few different means, and an end may be the neighbour.
    assert found.tolist() == pytest.approx([low, high], rel=0.007)


# By `rliable.library.create_performance_profile` of A at these thresholds, with reps=50000.
def test_intervals_of_a_performance_profile_are_those_of_rliable() -> None:
    found = interval(np.array(A), partial(performance_profile, thresholds=np.array(THRESHOLDS)), resamples=50_000)

    assert found is not None
    lows, highs = found
    assert lows.tolist() == pytest.approx([0.8, 2 / 3, 0.4, 1 / 15, 0.0, 0.0])
    assert highs.tolist() == pytest.approx([1.0, 13 / 15, 0.8, 1 / 3, 4 / 15, 0.0])


# By `rliable.library.get_interval_estimates` of the pair, with reps=20000 of `metrics.probability_of_improvement`, and
# with reps=50000 of the difference of `metrics.aggregate_iqm`.
@pytest.mark.parametrize(
    ("scores", "others", "probability", "gain"),
    [
        (B, A, (0.48333333333333334, 0.9), (-0.00388888888888905, 0.10611111111111116)),
        (LONG_B, LONG_A, (0.8285714285714286, 1.0), (33.06666666666666, 90.06666666666666)),
    ],
)
def test_intervals_of_two_groups_are_those_of_rliable(
    scores: list[list[float]], others: list[list[float]], probability: tuple[float, float], gain: tuple[float, float]
) -> None:
    groups = [np.array(scores), np.array(others)]

    chances = resampled(groups, probability_of_improvement, resamples=20_000)
    gains = resampled(groups, lambda x, y: interquartile_mean(x) - interquartile_mean(y), resamples=50_000)

    assert percentiles(chances, 0.95).tolist() == pytest.approx(probability, abs=0.015)
    assert percentiles(gains, 0.95).tolist() == pytest.approx(gain, abs=0.005 * np.ptp([*scores, *others]))


def test_each_task_is_drawn_by_itself() -> None:
    """Were whole runs drawn, the two tasks would always add up to 0."""
    scores = np.array([[-1.0, 1.0], [1.0, -1.0]])

    assert set(resampled([scores], mean, resamples=500).tolist()) == {-1.0, -0.5, 0.0, 0.5, 1.0}


@pytest.mark.parametrize("scores", [[1.0, float("nan")], [float("inf")], [[[1.0]]]])
def test_what_are_no_scores_is_refused(scores: Any) -> None:
    with pytest.raises(ValueError, match=r"finite|shape"):
        interval(scores, mean)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, float("nan")])
def test_a_confidence_beyond_its_range_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_interval([1.0, 2.0], confidence=confidence)


SCORES = st.lists(st.integers(0, 10).map(float), min_size=1, max_size=5)


def test_a_group_that_is_clearly_higher_is_better_by_the_difference_of_the_interquartile_means() -> None:
    found = compare_groups(np.array(LONG_A), np.array(LONG_B))

    assert (found.verdict, found.not_worse, found.more_seeds) == ("better", True, (0, 0))
    assert (found.a.value, found.b.value) == pytest.approx((408.6666666666667, 473.6))
    assert found.gain.value == pytest.approx(473.6 - 408.6666666666667)
    assert found.probability.value == pytest.approx(0.9571428571428572)
    assert found.gain.low is not None
    assert found.gain.low > 0.0
    # Twice what `scipy.stats.mannwhitneyu` (1.17.1) says, with a `PermutationMethod` of all ways to deal the scores.
    assert found.p_value == pytest.approx(2 * 0.003787878787878788)


def test_the_other_way_round_it_is_worse_by_as_much() -> None:
    there, back = compare_groups(np.array(LONG_A), np.array(LONG_B)), compare_groups(np.array(LONG_B), np.array(LONG_A))

    assert back.verdict == "worse"
    assert not back.not_worse
    assert back.gain.value == pytest.approx(-there.gain.value)
    assert back.p_value == there.p_value


def test_where_a_lower_score_is_better_the_lower_group_is_and_means_keep_their_sign() -> None:
    higher = compare_groups(np.array(LONG_A), np.array(LONG_B))
    lower = compare_groups(-np.array(LONG_A), -np.array(LONG_B), higher_is_better=False)

    assert (lower.verdict, lower.gain, lower.probability) == ("better", higher.gain, higher.probability)
    assert higher.a.low is not None
    assert higher.a.high is not None
    assert lower.a == Estimate(-higher.a.value, -higher.a.high, -higher.a.low)


def test_several_tasks_are_compared_together() -> None:
    found = compare_groups(np.array(A), np.array(B))

    assert found.verdict == "undecided"
    assert found.more_seeds is not None
    assert found.probability.value == pytest.approx(0.7083333333333334)
    doubled = compare_groups(np.array(A * 3), np.array(B * 3))
    assert doubled.verdict == "better"


@pytest.mark.parametrize(("runs", "verdict"), [(2, "undecided"), (3, "undecided"), (4, "better")])
def test_three_seeds_each_are_never_enough_even_where_the_groups_are_apart(runs: int, verdict: str) -> None:
    low, high = np.arange(runs) / 100, 1000.0 + np.arange(runs) / 100

    found = compare_groups(low, high)

    assert found.gain.low is not None
    assert found.gain.low > 900.0
    assert (found.verdict, found.more_seeds) == (verdict, (max(4 - runs, 0),) * 2)


@pytest.mark.parametrize(("a", "b", "more"), [([1.0], [2.0], (3, 3)), ([1.0], [2.0, 3.0, 2.5], (3, 1))])
def test_one_seed_says_nothing_about_others(a: Sequence[float], b: Sequence[float], more: tuple[int, int]) -> None:
    found = compare_groups(a, b)

    assert (found.verdict, found.more_seeds) == ("undecided", more)
    assert (found.a.low, found.gain.low, found.gain.high, found.probability.low) == (None, None, None, None)


def test_groups_that_do_not_differ_are_told_apart_in_at_most_5_of_100_cases() -> None:
    random = np.random.default_rng(1)

    wrong = sum(
        compare_groups(random.normal(size=size), random.normal(size=size), resamples=300).verdict != "undecided"
        for size in (3, 4, 5, 6)
        for _ in range(100)
    )

    assert wrong <= 20, "5 % of 400"


@pytest.mark.parametrize(("margin", "verdict"), [(0.0, "undecided"), (1.0, "undecided"), (4.0, "same")])
def test_groups_are_the_same_only_within_a_margin(margin: float, verdict: str) -> None:
    values = np.linspace(-2.0, 2.0, 12)

    found = compare_groups(values, values + 0.1, margin=margin)

    assert (found.verdict, found.not_worse) == (verdict, verdict == "same")


def test_equal_scores_are_the_same_within_any_margin_and_never_without_one() -> None:
    assert compare_groups([500.0] * 4, [500.0] * 4, margin=1.0).verdict == "same"
    without = compare_groups([500.0] * 4, [500.0] * 4)
    assert (without.verdict, without.more_seeds, without.p_value) == ("undecided", None, 1.0)


def test_a_gain_within_the_margin_is_not_better_and_not_worse_is_shown_earlier_than_the_same() -> None:
    random = np.random.default_rng(0)
    a = random.normal(size=12)
    b = a + 0.8

    assert compare_groups(a, b + 5.0).verdict == "better"
    assert compare_groups(a, b + 5.0, margin=10.0).verdict == "same"
    found = compare_groups(a, b, margin=1.0)
    assert (found.verdict, found.not_worse) == ("undecided", True)


@pytest.mark.long
def test_as_many_more_seeds_as_are_named_settle_it_in_about_four_of_five_cases() -> None:
    values = np.random.default_rng(2).normal(size=8)
    a = (values - values.mean()) / values.std(ddof=1)
    found = compare_groups(a, a + 0.9)
    assert (found.verdict, found.more_seeds is None) == ("undecided", False)
    assert found.more_seeds is not None
    runs = len(a) + found.more_seeds[0]

    random = np.random.default_rng(3)
    samples = [(random.normal(size=runs), random.normal(size=runs) + 0.9) for _ in range(60)]
    settled = sum(compare_groups(*sample, resamples=300).verdict == "better" for sample in samples)

    assert 39 <= settled <= 57, "48 of 60, with a standard deviation of 3"


def test_more_than_a_hundred_more_seeds_are_no_number() -> None:
    values = np.linspace(0.0, 1.0, 6)

    assert compare_groups(values, values + 0.01).more_seeds is None
    assert compare_groups(values, values).more_seeds is None


def test_the_smaller_group_needs_more_seeds() -> None:
    found = compare_groups([1.0, 3.0, 2.0, 4.0, 2.5, 3.5], [3.0, 5.0, 2.9])

    assert found.verdict == "undecided"
    assert found.more_seeds is not None
    assert found.more_seeds[1] - found.more_seeds[0] == 3 or found.more_seeds[0] == 0


@given(SCORES, SCORES)
def test_the_same_scores_in_any_order_have_the_same_answer_and_every_answer_holds_together(
    a: list[float], b: list[float]
) -> None:
    found = compare_groups(a, b, resamples=100, margin=1.0)

    assert compare_groups(a[::-1], b[::-1], resamples=100, margin=1.0) == found
    assert (found.more_seeds == (0, 0)) == (found.verdict != "undecided")
    assert found.not_worse or found.verdict not in {"better", "same"}
    assert 0.0 < found.p_value <= 1.0
    for estimate in (found.a, found.b, found.gain, found.probability):
        assert estimate.low is None or estimate.high is None or estimate.low <= estimate.high


@given(
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=5),
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=5),
)
def test_the_p_value_counts_the_ways_to_deal_the_scores(scores: list[float], others: list[float]) -> None:
    pooled = np.array(scores + others)
    ranks = (pooled[:, None] > pooled).sum(1) + 0.5 * (pooled[:, None] == pooled).sum(1)
    sums = [sum(ranks[list(chosen)]) for chosen in combinations(range(len(pooled)), len(scores))]

    expected = np.mean([dealt >= sum(ranks[: len(scores)]) - 1e-9 for dealt in sums])
    assert rank_test(as_scores(scores), as_scores(others)) == pytest.approx(expected)


# By `scipy.stats.mannwhitneyu` (1.17.1) with alternative="greater" and a `PermutationMethod` of all ways.
def test_the_p_value_is_that_of_scipy_with_ties() -> None:
    found = rank_test(as_scores([1.0, 2.0, 3.0, 3.0]), as_scores([0.0, 1.0, 2.0, 3.0]))

    assert found == pytest.approx(0.2857142857142857)


def test_beyond_the_exact_test_the_normal_one_goes_on_without_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    scores, others = random.normal(size=(EXACT_RUNS // 2, 2)), random.normal(-0.2, size=(EXACT_RUNS // 2, 2))
    exact = rank_test(scores, others)

    monkeypatch.setattr("ludus.statistics.EXACT_RUNS", 0)

    assert rank_test(scores, others) == pytest.approx(exact, rel=0.02)
    assert rank_test(np.zeros((60, 1)), np.zeros((60, 1))) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "options", "says"),
    [
        ([], [1.0], {}, "there are no scores"),
        ([1.0], [float("nan")], {}, "finite"),
        ([[1.0, 2.0]], [[1.0]], {}, "2 tasks"),
        ([1.0, 2.0], [1.0, 2.0], {"margin": -1.0}, "margin"),
        ([1.0, 2.0], [1.0, 2.0], {"margin": float("nan")}, "margin"),
        ([1.0, 2.0], [1.0, 2.0], {"confidence": 1.0}, "confidence"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(
    a: Sequence[float], b: Sequence[float], options: dict[str, float], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        compare_groups(a, b, **options)  # type: ignore[arg-type]
