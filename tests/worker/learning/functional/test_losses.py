"""The terms of the objective against arithmetic, their derivatives, and both under padding."""

import math
from collections.abc import Callable
from typing import Any

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


def loss_and_slope(term: Callable[..., Tensor], first: Tensor, *others: Tensor, **options: Any) -> tuple[float, Tensor]:
    """A term, and its derivative by its first argument."""
    first = first.clone().requires_grad_()
    loss = term(first, *others, **options)
    (slope,) = torch.autograd.grad(loss, [first])
    return float(loss.detach()), slope


def test_surrogate_of_an_unchanged_policy_is_minus_the_mean_advantage() -> None:
    loss, slope = loss_and_slope(clipped_surrogate, torch.zeros(2), torch.tensor([1.0, 3.0]), epsilon=0.2)

    assert loss == -2.0
    assert slope.tolist() == [-0.5, -1.5]  # -ratio * A / 2


def test_surrogate_is_clipped_where_a_good_action_became_much_likelier() -> None:
    loss, slope = loss_and_slope(clipped_surrogate, torch.tensor([1.5]).log(), torch.tensor([2.0]), epsilon=0.2)

    assert loss == pytest.approx(-2.4)  # -min(1.5 * 2, 1.2 * 2)
    assert slope.tolist() == [0.0]


def test_surrogate_is_not_clipped_where_a_bad_action_became_much_likelier() -> None:
    loss, slope = loss_and_slope(clipped_surrogate, torch.tensor([1.5]).log(), torch.tensor([-2.0]), epsilon=0.2)

    assert loss == pytest.approx(3.0)  # -min(1.5 * -2, 1.2 * -2)
    assert slope.tolist() == pytest.approx([3.0])


def test_value_loss_takes_the_larger_of_both_errors() -> None:
    # V = 2, V_old = 0, epsilon 0.5: V_clipped = 0.5; R = 3: max((3 - 2)^2, (3 - 0.5)^2) = 6.25, and V is not pulled.
    loss, slope = loss_and_slope(
        clipped_value_loss, torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[3.0]]), epsilon=0.5
    )

    assert loss == 6.25
    assert slope.tolist() == [[0.0]]


def test_value_loss_within_the_clip_range_is_the_squared_error() -> None:
    loss, slope = loss_and_slope(
        clipped_value_loss, torch.tensor([[2.0]]), torch.tensor([[1.8]]), torch.tensor([[3.0]]), epsilon=0.5
    )

    assert loss == pytest.approx(1.0)
    assert slope[0].tolist() == pytest.approx([-2.0])  # 2 (V - R)


def test_squared_error_pulls_values_to_returns_however_far_they_are() -> None:
    loss, slope = loss_and_slope(squared_error, torch.tensor([[2.0], [0.0]]), torch.tensor([[3.0], [50.0]]))

    assert loss == 1250.5  # (1 + 2500) / 2
    assert slope.tolist() == [[-1.0], [-50.0]]  # 2 (V - R) / 2


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


seeds = st.integers(0, 2**31)


@given(seeds, st.integers(1, 8), st.integers(0, 8))
def test_padding_changes_neither_losses_nor_slopes(seed: int, rows: int, padding: int) -> None:
    mask = torch.tensor([True] * rows + [False] * padding)
    log_ratio, advantage = normal(seed, rows + padding), normal(seed + 1, rows + padding)
    values, old, returns = (normal(seed + 2 + index, rows + padding, 2) for index in range(3))
    advantage[rows:] = math.nan  # padding may hold anything
    returns[rows:], old[rows:] = math.nan, math.inf

    for term, columns, options in (
        (clipped_surrogate, (log_ratio, advantage), {"epsilon": 0.2}),
        (clipped_value_loss, (values, old, returns), {"epsilon": 0.2}),
        (squared_error, (values, returns), {}),
    ):
        loss, slope = loss_and_slope(term, *columns, mask=mask, **options)
        alone, slope_alone = loss_and_slope(term, *[column[:rows] for column in columns], **options)
        assert loss == pytest.approx(alone)
        torch.testing.assert_close(slope[:rows], slope_alone)
        assert not slope[rows:].any()


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
