"""The tests of samples tell worse from equal."""

import pytest

from tests.learning.statistics import chance_of_as_much_worse, probability_of_worse


def test_equal_samples_are_not_called_worse() -> None:
    assert 0.3 < probability_of_worse([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], margin=0.0) < 0.6


def test_a_clearly_lower_sample_is_called_worse() -> None:
    assert probability_of_worse([1.0, 2.0, 1.5], [10.0, 11.0, 12.0, 9.0, 10.5], margin=1.0) == 1.0


def test_a_difference_within_the_margin_is_not_called_worse() -> None:
    assert probability_of_worse([9.0, 9.5, 9.2], [10.0, 10.1, 9.9], margin=2.0) == 0.0


def test_a_better_sample_is_never_called_worse() -> None:
    assert probability_of_worse([500.0] * 3, [480.0, 500.0, 470.0, 500.0, 490.0], margin=0.0) == 0.0


def test_the_permutation_test_counts_the_ways_to_deal_the_scores() -> None:
    # Of the six ways to deal 1, 2, 3 and 4 to two sides, one gives us 1 and 2, and one gives us 3 and 4.
    assert chance_of_as_much_worse([1.0, 2.0], [3.0, 4.0]) == pytest.approx(1 / 6)
    assert chance_of_as_much_worse([3.0, 4.0], [1.0, 2.0]) == 1.0
    assert chance_of_as_much_worse([5.0, 5.0], [5.0, 5.0]) == 1.0
