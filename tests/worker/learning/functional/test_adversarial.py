"""What a discriminator minimises and pays, with the arithmetic shown."""

import math

import pytest
import torch

from worker.learning.functional.adversarial import (
    bottleneck_information,
    discriminator_loss,
    gradient_penalty,
    imitation_reward,
    next_beta,
)


def logit(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def test_reward_is_minus_the_logarithm_of_being_caught() -> None:
    # D = 0.5: -ln(0.5) = 0.6931; D = 0.9: -ln(0.1) = 2.3026; D = 0.25: -ln(0.75) = 0.2877.
    rewards = imitation_reward(torch.tensor([0.0, logit(0.9), logit(0.25)]))

    assert rewards.tolist() == pytest.approx([0.6931, 2.3026, 0.2877], abs=1e-4)


@pytest.mark.parametrize("value", [-30.0, -5.0, 0.0, 5.0, 12.0])
def test_reward_equals_ml_agents_formula(value: float) -> None:
    estimate = torch.tensor([value], dtype=torch.float64).sigmoid()

    reward = imitation_reward(torch.tensor([value], dtype=torch.float64))

    torch.testing.assert_close(reward, -torch.log(1.0 - estimate * (1.0 - 1e-7)), rtol=1e-6, atol=1e-12)


def test_reward_has_a_largest_value_and_never_overflows() -> None:
    rewards = imitation_reward(torch.tensor([200.0, 1e6, -1e6]))

    assert rewards.tolist() == pytest.approx([16.118, 16.118, 0.0], abs=1e-3)  # -ln(1e-7) = 16.118


def test_loss_is_cross_entropy() -> None:
    # Expert judged 0.9 and 0.6: -(ln 0.9 + ln 0.6) / 2 = 0.3081; policy 0.2: -ln 0.8 = 0.2231.
    expert = torch.tensor([logit(0.9), logit(0.6)])

    loss = discriminator_loss(expert, torch.tensor([logit(0.2)]))

    assert float(loss) == pytest.approx(0.3081 + 0.2231, abs=1e-4)


def test_loss_stays_finite_where_the_discriminator_is_certain() -> None:
    assert float(discriminator_loss(torch.tensor([-500.0]), torch.tensor([500.0]))) == 1000.0


def test_penalty_is_zero_for_slopes_of_one_over_all_inputs_together() -> None:
    # Lengths by input: (0.6, 0.8); together sqrt(0.36 + 0.64) = 1.
    gradients = [torch.tensor([[0.6, 0.0]]), torch.tensor([[[0.0, 0.8]]])]

    assert float(gradient_penalty(gradients)) == pytest.approx(0.0, abs=1e-6)


def test_penalty_counts_every_input() -> None:
    # Row 0: |g| = sqrt(9 + 16) = 5, (5 - 1)^2 = 16; row 1: |g| = 0, 1. Mean: 8.5. The first input alone: (4 + 1) / 2.
    gradients = [torch.tensor([[3.0], [0.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])]

    assert float(gradient_penalty(gradients)) == pytest.approx(8.5, abs=1e-2)
    assert float(gradient_penalty(gradients[:1])) == pytest.approx(2.5, abs=1e-2)


def test_penalty_has_a_finite_derivative_where_the_slope_is_zero() -> None:
    slope = torch.zeros(1, 3, requires_grad=True)

    gradient_penalty([slope]).backward()

    assert slope.grad is not None
    assert bool(slope.grad.isfinite().all())


def test_information_is_the_divergence_of_expert_plus_policy() -> None:
    sigma, expert, policy = torch.tensor([0.5, 2.0]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0], [0.0, 1.0]])
    standard = torch.distributions.Normal(torch.zeros(2), torch.ones(2))

    def divergence(mean: torch.Tensor) -> torch.Tensor:
        normal = torch.distributions.Normal(mean, sigma.expand_as(mean))
        return torch.distributions.kl_divergence(normal, standard).sum(1).mean()

    information = bottleneck_information(expert, policy, sigma)

    torch.testing.assert_close(information, divergence(expert) + divergence(policy))


def test_beta_follows_the_bound_and_never_pays_for_information() -> None:
    # 0.3 + 5e-4 * (2.5 - 0.5) = 0.301; below the bound: 0.0001 + 5e-4 * (0.1 - 0.5) = -0.0001, which becomes 0.
    assert float(next_beta(torch.tensor(0.3), torch.tensor(2.5), 0.5, 5e-4)) == pytest.approx(0.301)
    assert float(next_beta(torch.tensor(1e-4), torch.tensor(0.1), 0.5, 5e-4)) == 0.0
