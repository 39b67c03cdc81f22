"""Soft values against their definition and automatic differentiation."""

import pytest
import torch
from torch import Tensor

from worker.learning.functional.distributions import Branch, masked_logits
from worker.learning.functional.soft_values import (
    branch_objective_gradient,
    chosen_q,
    chosen_q_gradient,
    expected_q,
    expected_q_slope,
)


def branch_of(logits: Tensor, masks: Tensor | None = None) -> Branch:
    log_p = masked_logits(logits, masks).log_softmax(1)
    return Branch(log_p, log_p.exp(), -(log_p.exp() * log_p).sum(1))


def test_two_branches_count_as_the_mean_of_their_sums() -> None:
    # Even odds over 2 and over 3 choices: ((1 + 3) / 2 + (10 + 20 + 60) / 3) / 2 = (2 + 30) / 2
    branches = [branch_of(torch.zeros(1, 2)), branch_of(torch.zeros(1, 3))]

    expected = expected_q(torch.tensor([1.0, 3.0, 10.0, 20.0, 60.0]).view(1, 1, 1, 5), branches)

    assert expected.item() == pytest.approx(16.0)


def test_without_branches_the_only_output_is_the_value() -> None:
    q = torch.randn(2, 4, 3, 1)

    torch.testing.assert_close(expected_q(q, []), q[..., 0])
    torch.testing.assert_close(chosen_q(q, torch.empty(4, 0, dtype=torch.int64)), q[..., 0])


def test_chosen_value_is_the_mean_over_branches_of_what_was_chosen() -> None:
    q = torch.tensor([1.0, 3.0, 10.0, 20.0, 60.0]).view(1, 1, 1, 5)

    # Choice 1 of the first branch, choice 2 of the second, which is number 4 of all: (3 + 60) / 2
    assert chosen_q(q, torch.tensor([[1, 4]])).item() == pytest.approx(31.5)


@pytest.mark.parametrize("signals", [1, 3])
@pytest.mark.parametrize("sizes", [(), (3,), (2, 4)])
def test_derivatives_by_values_are_those_of_automatic_differentiation(sizes: tuple[int, ...], signals: int) -> None:
    choices = max(sum(sizes), 1)
    q = torch.randn(2, 5, signals, choices, requires_grad=True)
    branches = [branch_of(torch.randn(5, size)) for size in sizes]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    chosen = torch.stack([torch.randint(size, (5,)) for size in sizes], 1) if sizes else torch.empty(5, 0).long()
    chosen += torch.tensor(starts, dtype=torch.int64)
    by_chosen, weight = torch.randn(2, 5, signals), torch.rand(5, 1)

    (by_q,) = torch.autograd.grad((chosen_q(q, chosen) * by_chosen).sum(), [q])
    (by_q1,) = torch.autograd.grad((expected_q(q, branches)[0].mean(1, keepdim=True) * weight).sum(), [q])

    torch.testing.assert_close(chosen_q_gradient(by_chosen, chosen, choices), by_q)
    torch.testing.assert_close(expected_q_slope(branches, weight, signals), by_q1[0].flatten(1))


def test_derivative_by_logits_is_that_of_automatic_differentiation_and_0_for_forbidden_choices() -> None:
    logits, q, alpha = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4), torch.tensor(0.7)
    masks = torch.rand(6, 4) < 0.6
    masks[:, 0] = True
    masks[2] = torch.tensor([True, False, False, False])

    log_p = masked_logits(logits, masks).log_softmax(1)
    (by_logits,) = torch.autograd.grad((log_p.exp() * (alpha * log_p - q)).sum(), [logits])
    mine = branch_objective_gradient(branch_of(logits.detach(), masks), q, alpha)

    torch.testing.assert_close(mine, by_logits, rtol=1e-5, atol=1e-6)
    assert bool((mine[~masks] == 0).all())
    assert bool(mine[2].abs().max() < 1e-6), "where only one choice is allowed there is nothing to learn"
