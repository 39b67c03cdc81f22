"""Each derivative by hand against autograd on the definition of the same term."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.worker.learning.functional.test_distributions import actions
from tests.worker.learning.functional.test_soft_values import branch_of
from tests.worker.learning.functional.test_squashed import columns
from worker.learning.fast import ppo
from worker.learning.fast.sac import (
    branch_objective_gradient,
    chosen_q_gradient,
    expected_q_gradient,
    squashed_gradient,
)
from worker.learning.functional import losses
from worker.learning.functional.distributions import joint_distribution, masked_logits
from worker.learning.functional.soft_values import chosen_q, expected_q
from worker.learning.functional.squashed import draw_squashed

seeds = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seeds, st.integers(1, 8), st.integers(1, 3), st.floats(0.05, 0.5))
def test_terms_of_ppo_and_their_gradients(seed: int, rows: int, signals: int, epsilon: float) -> None:
    log_ratio, advantage = normal(seed, rows).requires_grad_(), normal(seed + 1, rows)
    values, old, returns = (normal(seed + 2 + index, rows, signals) for index in range(3))
    values.requires_grad_()

    for first, expected, term in (
        (
            log_ratio,
            losses.clipped_surrogate(log_ratio, advantage, epsilon),
            ppo.clipped_surrogate(log_ratio.detach(), advantage, epsilon),
        ),
        (
            values,
            losses.clipped_value_loss(values, old, returns, epsilon),
            ppo.clipped_value_loss(values.detach(), old, returns, epsilon),
        ),
        (values, losses.squared_error(values, returns), ppo.squared_error(values.detach(), returns)),
    ):
        (gradient,) = torch.autograd.grad(expected, [first])
        torch.testing.assert_close(term.loss, expected.detach())
        torch.testing.assert_close(term.gradient, gradient)


@given(actions(), st.floats(-1, 1))
def test_gradient_of_a_joint_distribution(data: dict, by_entropy: float) -> None:
    head, log_sigma = data["head"].clone().requires_grad_(), data["log_sigma"].clone().requires_grad_()
    by_log_prob = torch.randn(len(head), dtype=torch.float64)
    joint = joint_distribution(**{**data, "head": head, "log_sigma": log_sigma})
    loss = (joint.log_prob * by_log_prob).sum() + by_entropy * joint.entropy.sum()
    expected = torch.autograd.grad(loss, (head, log_sigma), allow_unused=True)

    with torch.no_grad():
        by_head, by_log_sigma = ppo.joint_gradient(joint_distribution(**data), by_log_prob, by_entropy)

    torch.testing.assert_close(by_head, expected[0])
    if len(log_sigma):
        torch.testing.assert_close(by_log_sigma, expected[1])


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
    torch.testing.assert_close(expected_q_gradient(branches, weight, signals), by_q1[0].flatten(1))


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


@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_gradient_is_that_of_automatic_differentiation(spread: float) -> None:
    mean, log_sigma, noise = columns(seed=2, spread=spread)
    log_sigma[0, 0], log_sigma[1, 1] = 2.5, -21.0  # beyond the limits
    by_action, by_log_prob = torch.randn(7, 3), torch.randn(7, 1)

    mine = squashed_gradient(draw_squashed(mean, log_sigma, noise), by_action, by_log_prob)

    mean.requires_grad_()
    log_sigma.requires_grad_()
    limited = log_sigma.clamp(-20, 2)
    unsquashed = mean + limited.exp() * noise
    slope = 2 * (0.6931471805599453 - unsquashed - torch.nn.functional.softplus(-2 * unsquashed))
    log_prob = (-0.5 * noise**2 - limited - slope).sum(1, keepdim=True)
    ((unsquashed.tanh() * by_action).sum() + (log_prob * by_log_prob).sum()).backward()
    torch.testing.assert_close(mine[0], mean.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[1], log_sigma.grad, rtol=1e-4, atol=1e-5)
    assert mine[1][0, 0] == 0.0
    assert mine[1][1, 1] == 0.0
