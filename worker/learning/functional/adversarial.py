"""The terms of GAIL (Ho & Ermon 2016, https://arxiv.org/abs/1606.03476) and of VAIL (Peng et al. 2019,
https://arxiv.org/abs/1810.00821): what a discriminator `D = sigmoid(logit)` minimises, and what it pays the policy.

All take logits, in which none of them overflows or loses its last digits. Every function is a plain formula that
automatic differentiation can pass, twice where a gradient is penalised.

Dimensions: `B` rows of a batch, `Z` columns of the bottleneck.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor

SURE = 1e-7
"""No reward is for being an expert more certainly than this: `-ln(1e-7)`, 16.1, is the largest one."""
NORM_GUARD = 1e-7
"""Under the root of a gradient's length, whose derivative at 0 is infinite."""


def imitation_reward(logit: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return `-ln(1 - D * (1 - 1e-7))`: between 0 and 16.1, and ln 2 where the discriminator cannot tell."""
    # 1 - D (1 - s) = (1 - D) + s D, a sum of two positive terms whose logarithms are known without rounding.
    return torch.logaddexp(-F.softplus(logit), math.log(SURE) - F.softplus(-logit)).neg()


def discriminator_loss(expert: Float[Tensor, " E"], policy: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Return `-mean(ln D(expert)) - mean(ln(1 - D(policy)))`, from logits: 2 ln 2 where it cannot tell."""
    return F.softplus(-expert).mean() + F.softplus(policy).mean()


def gradient_penalty(gradients: Sequence[Float[Tensor, "B ..."]]) -> Float[Tensor, ""]:
    """Return `mean((|g| - 1)^2)` (Gulrajani et al. 2017), where `g` is a row's gradient by *all* inputs together."""
    squares = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients])  # (inputs, B)
    return ((squares.sum(0) + NORM_GUARD).sqrt() - 1.0).square().mean()


def bottleneck_information(
    expert_mean: Float[Tensor, "E Z"], policy_mean: Float[Tensor, "B Z"], sigma: Float[Tensor, " Z"]
) -> Float[Tensor, ""]:
    """Return `KL(N(mean, sigma^2) || N(0, 1))` in nats, of expert plus policy, each the mean over its rows.

    ML-Agents' expression `-sum(1 + ln sigma^2 - mean_E^2 / 2 - mean_P^2 / 2 - sigma^2)`, mean over rows: with
    `KL = sum(mean^2 + sigma^2 - 1 - ln sigma^2) / 2` it is exactly the sum of both, twice their average. Its bound on
    the information (`I_c`) is one on this sum.
    """
    variance = sigma.square()
    spread = (variance - variance.log() - 1.0).sum()
    return spread + 0.5 * (expert_mean.square().sum(1).mean() + policy_mean.square().sum(1).mean())


def next_beta(beta: Float[Tensor, ""], information: Float[Tensor, ""], bound: float, rate: float) -> Float[Tensor, ""]:
    """Return `max(0, beta + rate * (information - bound))`: the price of information rises while the bound is broken.

    Dual gradient ascent (Peng et al. 2019, equation 10).
    """
    return (beta + rate * (information - bound)).clamp(min=0.0)
