"""The terms of the objective against arithmetic, against automatic differentiation, and under padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from worker.learning.functional.losses import (
    approximate_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    mean_of_rows,
    row_weights,
    squared_error,
)


def test_surrogate_of_an_unchanged_policy_is_minus_the_mean_advantage() -> None:
    term = clipped_surrogate(torch.zeros(2), torch.tensor([1.0, 3.0]), epsilon=0.2)

    assert float(term.loss) == -2.0
    assert term.slope.tolist() == [-0.5, -1.5]  # -ratio * A / 2


def test_surrogate_is_clipped_where_a_good_action_became_much_likelier() -> None:
    term = clipped_surrogate(torch.tensor([1.5]).log(), torch.tensor([2.0]), epsilon=0.2)

    assert float(term.loss) == pytest.approx(-2.4)  # -min(1.5 * 2, 1.2 * 2)
    assert term.slope.tolist() == [0.0]


def test_surrogate_is_not_clipped_where_a_bad_action_became_much_likelier() -> None:
    term = clipped_surrogate(torch.tensor([1.5]).log(), torch.tensor([-2.0]), epsilon=0.2)

    assert float(term.loss) == pytest.approx(3.0)  # -min(1.5 * -2, 1.2 * -2)
    assert term.slope.tolist() == pytest.approx([3.0])


def test_value_loss_takes_the_larger_of_both_errors() -> None:
    # V = 2, V_old = 0, epsilon 0.5: V_clipped = 0.5; R = 3: max((3 - 2)^2, (3 - 0.5)^2) = 6.25, and V is not pulled.
    term = clipped_value_loss(torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[3.0]]), epsilon=0.5)

    assert float(term.loss) == 6.25
    assert term.slope.tolist() == [[0.0]]


def test_value_loss_within_the_clip_range_is_the_squared_error() -> None:
    term = clipped_value_loss(torch.tensor([[2.0]]), torch.tensor([[1.8]]), torch.tensor([[3.0]]), epsilon=0.5)

    assert float(term.loss) == pytest.approx(1.0)
    assert term.slope[0].tolist() == pytest.approx([-2.0])  # 2 (V - R)


def test_squared_error_pulls_values_to_returns_however_far_they_are() -> None:
    term = squared_error(torch.tensor([[2.0], [0.0]]), torch.tensor([[3.0], [50.0]]))

    assert float(term.loss) == 1250.5  # (1 + 2500) / 2
    assert term.slope.tolist() == [[-1.0], [-50.0]]  # 2 (V - R) / 2


def plain_surrogate(log_ratio: Tensor, advantage: Tensor, epsilon: float) -> Tensor:
    ratio = log_ratio.exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)


def plain_value_loss(values: Tensor, old: Tensor, returns: Tensor, epsilon: float) -> Tensor:
    clipped = old + (values - old).clamp(-epsilon, epsilon)
    return torch.max((returns - values) ** 2, (returns - clipped) ** 2)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


seeds = st.integers(0, 2**31)


@given(seeds, st.integers(1, 8), st.floats(0.05, 0.5))
def test_surrogate_and_its_slope_equal_automatic_differentiation(seed: int, rows: int, epsilon: float) -> None:
    log_ratio, advantage = normal(seed, rows).requires_grad_(), normal(seed + 1, rows)

    loss = plain_surrogate(log_ratio, advantage, epsilon).mean()
    loss.backward()
    term = clipped_surrogate(log_ratio.detach(), advantage, epsilon)

    torch.testing.assert_close(term.loss, loss.detach())
    torch.testing.assert_close(term.slope, log_ratio.grad)


@given(seeds, st.integers(1, 8), st.integers(1, 3), st.floats(0.05, 0.5))
def test_value_loss_and_its_slope_equal_automatic_differentiation(
    seed: int, rows: int, signals: int, epsilon: float
) -> None:
    values = normal(seed, rows, signals).requires_grad_()
    old, returns = normal(seed + 1, rows, signals), normal(seed + 2, rows, signals)

    loss = plain_value_loss(values, old, returns, epsilon).mean()
    loss.backward()
    term = clipped_value_loss(values.detach(), old, returns, epsilon)

    torch.testing.assert_close(term.loss, loss.detach())
    torch.testing.assert_close(term.slope, values.grad)


@given(seeds, st.integers(1, 8), st.integers(0, 8))
def test_padding_changes_neither_losses_nor_slopes(seed: int, rows: int, padding: int) -> None:
    mask = torch.tensor([True] * rows + [False] * padding)
    log_ratio, advantage = normal(seed, rows + padding), normal(seed + 1, rows + padding)
    values, old, returns = (normal(seed + 2 + index, rows + padding, 2) for index in range(3))
    advantage[rows:] = math.nan  # padding may hold anything

    surrogate = clipped_surrogate(log_ratio, advantage, 0.2, mask)
    value = clipped_value_loss(values, old, returns, 0.2, mask)

    alone = clipped_surrogate(log_ratio[:rows], advantage[:rows], 0.2)
    value_alone = clipped_value_loss(values[:rows], old[:rows], returns[:rows], 0.2)
    torch.testing.assert_close(surrogate.loss, alone.loss)
    torch.testing.assert_close(surrogate.slope[:rows], alone.slope)
    torch.testing.assert_close(value.loss, value_alone.loss)
    torch.testing.assert_close(value.slope[:rows], value_alone.slope)
    assert not value.slope[rows:].any()


@given(seeds, st.integers(1, 8))
def test_order_of_rows_does_not_matter(seed: int, rows: int) -> None:
    log_ratio, advantage = normal(seed, rows), normal(seed + 1, rows)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))

    term = clipped_surrogate(log_ratio, advantage, 0.2)
    permuted = clipped_surrogate(log_ratio[order], advantage[order], 0.2)

    torch.testing.assert_close(permuted.loss, term.loss)
    torch.testing.assert_close(permuted.slope, term.slope[order])


def test_no_row_that_counts_has_no_weight() -> None:
    assert row_weights(torch.tensor([False, False])).tolist() == [0.0, 0.0]
    assert row_weights(torch.tensor([True, False])).tolist() == [1.0, 0.0]


def test_approximate_kl_is_zero_for_an_unchanged_policy_and_positive_otherwise() -> None:
    assert float(approximate_kl(torch.zeros(3))) == 0.0
    # ratio 2 and 0.5: ((2 - 1) - ln 2 + (0.5 - 1) + ln 2) / 2 = 0.25
    assert float(approximate_kl(torch.tensor([2.0, 0.5]).log())) == pytest.approx(0.25)


def test_clip_fraction_counts_ratios_outside_the_range() -> None:
    ratios = torch.tensor([1.0, 1.1, 1.3, 0.7])

    assert float(clip_fraction(ratios.log(), epsilon=0.2)) == 0.5


def test_means_count_the_rows_that_are_real() -> None:
    mask = torch.tensor([True, True, False, True])

    # (1 + 2 + 6) / 3 = 3; the padding may be anything.
    assert float(mean_of_rows(torch.tensor([1.0, 2.0, float("nan"), 6.0]), mask)) == 3.0
    assert float(mean_of_rows(torch.tensor([1.0, 2.0, 6.0]))) == 3.0


def test_padding_changes_neither_kl_nor_clip_fraction() -> None:
    log_ratio, mask = torch.tensor([0.5, -0.1, 9.0]), torch.tensor([True, True, False])

    torch.testing.assert_close(approximate_kl(log_ratio, mask), approximate_kl(log_ratio[:2]))
    assert float(clip_fraction(log_ratio, 0.2, mask)) == 0.5
