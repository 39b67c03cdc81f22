"""Squashed Gaussians against torch's own distributions and automatic differentiation."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from worker.learning.functional.squashed import draw_squashed


def columns(rows: int = 7, seed: int = 1, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Means, log-sigmas and noise, (rows, 3) each."""
    generator = torch.Generator().manual_seed(seed)
    mean, log_sigma, noise = torch.randn(3, rows, 3, generator=generator)
    return mean * spread, log_sigma * 0.5, noise


def test_log_density_is_that_of_a_gaussian_behind_tanh() -> None:
    mean, log_sigma, noise = columns()

    squashed = draw_squashed(mean, log_sigma, noise)

    peer = TransformedDistribution(Normal(mean, log_sigma.exp()), [TanhTransform(cache_size=1)])
    drawn = (mean + log_sigma.exp() * noise).tanh()
    torch.testing.assert_close(squashed.action, drawn)
    torch.testing.assert_close(squashed.log_prob, peer.log_prob(drawn).sum(1), rtol=1e-4, atol=1e-4)


def test_density_stays_exact_where_tanh_rounds_to_one() -> None:
    # u = 20: log(1 - tanh^2) = 2 (log 2 - 20 - log(1 + e^-40)), and the density of u = mean is -log(2 pi) / 2 - log 1.
    squashed = draw_squashed(torch.full((1, 1), 20.0), torch.zeros(1, 1), torch.zeros(1, 1))

    assert squashed.action.item() == 1.0
    assert squashed.log_prob.item() == pytest.approx(-0.918939 - 2 * (0.693147 - 20.0), rel=1e-6)


def test_density_integrates_to_one() -> None:
    # Noise on a fine grid draws actions a(u); the integral of pi(a) da over (-1, 1) is a sum of pi * da.
    noise = torch.linspace(-8, 8, 200_001, dtype=torch.float64).unsqueeze(1)
    mean, log_sigma = torch.full_like(noise, 0.3), torch.full_like(noise, -0.4)

    squashed = draw_squashed(mean, log_sigma, noise)

    widths = squashed.action[1:, 0] - squashed.action[:-1, 0]
    density = squashed.log_prob.exp()
    assert float((widths * (density[1:] + density[:-1]) / 2).sum()) == pytest.approx(1.0, abs=1e-6)
