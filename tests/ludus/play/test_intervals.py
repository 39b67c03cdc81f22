"""Bootstrap intervals hold the true mean as often as they say."""

from typing import Any

import numpy as np
import pytest

from ludus.play import intervals


def mean_interval(values: list[float], **options: Any) -> tuple[float, float]:
    """Return an interval that there is."""
    found = intervals.mean_interval(values, **options)
    assert found is not None
    return found


def test_the_interval_of_a_large_sample_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 400)

    low, high = mean_interval(values.tolist())

    error = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.03)


def test_it_holds_the_true_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(2)
    samples = random.binomial(1, 0.7, (300, 100)).astype(float)

    held = 0
    for number, sample in enumerate(samples):
        low, high = mean_interval(sample.tolist(), resamples=500, seed=number)
        held += low <= 0.7 <= high

    # 95 % of 300 are 285, with a standard deviation of 3.8; intervals of so small samples are a little narrow.
    assert 270 <= held <= 297


def test_more_confidence_is_a_wider_interval() -> None:
    values = [0.0, 1.0, 2.0, 5.0]

    narrow, wide = mean_interval(values, confidence=0.5), mean_interval(values, confidence=0.99)

    assert wide[0] < narrow[0] < 2.0 < narrow[1] < wide[1]


def test_values_that_are_all_alike_leave_no_width() -> None:
    assert mean_interval([3.0] * 5) == (3.0, 3.0)


def test_a_single_value_has_no_interval() -> None:
    assert intervals.mean_interval([3.0]) is None


def test_the_same_values_have_the_same_interval() -> None:
    values = np.random.default_rng(3).normal(size=50).tolist()

    assert mean_interval(values) == mean_interval(values)


def test_more_values_than_are_drawn_at_once_are_possible() -> None:
    values = np.linspace(0.0, 1.0, 1_100_000).tolist()

    low, high = mean_interval(values, resamples=3)

    assert 0.499 < low <= high < 0.501


def test_no_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
