"""Gaussian actions squashed by tanh (Haarnoja et al. 2018, appendix C), and the soft value of a policy.

A continuous action is `a = tanh(u)`, `u = mean + sigma * noise`: it lies in (-1, 1), and its density is that of `u`
divided by the derivative of tanh. With `log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))`, which is exact also where
tanh rounds to 1,

    log pi(a) = sum over columns of -noise^2 / 2 - log sigma - log(2 pi) / 2 - 2 (log 2 - u - softplus(-2u))

`log_sigma` is an output of the network, limited to [-20, 2]; where the limit acts its derivative is 0.

Deviation from ML-Agents, on purpose: no `1e-7` inside logarithms.
"""

from typing import NamedTuple

import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Bool, Float
from torch import Tensor

from ludus.collector.heads import HALF_LOG_TWO_PI, LOG_SIGMA_LIMITS, LOG_TWO


class Squashed(NamedTuple):
    """Actions drawn from squashed Gaussians, and what their derivatives by hand need (`fast.sac`)."""

    action: Float[Tensor, "B C"]
    """In (-1, 1)."""
    log_prob: Float[Tensor, " B"]
    """Joint log-density of each row's action."""
    log_sigma: Float[Tensor, "B C"]
    """Limited."""
    inside: Bool[Tensor, "B C"]
    """Where the limits did not act on `log_sigma`."""
    step: Float[Tensor, "B C"]
    """`sigma * noise`."""


def draw_squashed(mean: Float[Tensor, "B C"], log_sigma: Float[Tensor, "B C"], noise: Float[Tensor, "B C"]) -> Squashed:
    """Return the actions that standard normal noise draws, with their log-density. `log_sigma` as the network gives."""
    limited = log_sigma.clamp(*LOG_SIGMA_LIMITS)
    step = limited.exp() * noise
    unsquashed = mean + step
    terms = F.softplus(unsquashed.mul(-2.0)).add_(unsquashed).mul_(2.0)
    terms = terms.sub_(limited).addcmul_(noise, noise, value=-0.5)
    constant = mean.shape[1] * (2.0 * LOG_TWO + HALF_LOG_TWO_PI)
    return Squashed(
        action=unsquashed.tanh(),
        log_prob=terms.sum(1).sub_(constant),
        log_sigma=limited,
        inside=limited == log_sigma,
        step=step,
    )
