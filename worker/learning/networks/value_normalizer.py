"""Normalised value targets (van Hasselt et al. 2016, "Learning values across many orders of magnitude",
https://arxiv.org/abs/1602.07714: PopArt), for each reward signal.

The critic's heads give values in units of the returns' deviation from their mean. When the statistics move, weights and
biases of the heads move against them, so that every value stays what it was.

Deviations, on purpose:
 a. Statistics move once with each update, not with each minibatch: they are the plain mean over the first ten updates,
    then move a tenth of the way.
 b. They are of returns and values together: returns that are all alike, but far from the values, have a deviation of 0,
    in units of which the values would be infinitely far off.

Dimensions: `N` steps, `S` signals.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worker.learning.data_parallel import mean_over_ranks

RATE = 0.1
"""How far statistics move to those of an update, once there were enough of them."""
LEAST_DEVIATION = 1e-4
"""Constant returns are divided by this."""


class ValueNormalizer(nn.Module):
    """Running mean and deviation of returns and values."""

    updates: Tensor
    mean: Tensor
    square: Tensor
    """Mean of the squares."""

    def __init__(self, signals: int) -> None:
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(signals, dtype=torch.float64))
        self.register_buffer("square", torch.ones(signals, dtype=torch.float64))

    def deviation(self) -> Float[Tensor, " S"]:
        """Return the standard deviation of each signal, float64."""
        return (self.square - self.mean.square()).clamp(min=LEAST_DEVIATION**2).sqrt()

    def normalized(self, values: Float[Tensor, "N S"]) -> Float[Tensor, "N S"]:
        """Return values or returns in the heads' units."""
        return (values - self.mean.float()) / self.deviation().float()

    def forward(self, outputs: Float[Tensor, "N S"]) -> Float[Tensor, "N S"]:
        """Return the heads' outputs in the units of rewards."""
        return outputs * self.deviation().float() + self.mean.float()

    @torch.no_grad()
    def merge(self, returns: Float[Tensor, "N S"], values: Float[Tensor, "N S"], heads: nn.Linear) -> None:
        """Move the statistics towards those of an update; the heads change so that their values stay the same."""
        mean, deviation = self.mean.clone(), self.deviation()
        rate = (1.0 / (self.updates + 1.0)).clamp(min=RATE)
        doubles = torch.cat([returns, values]).double()
        self.mean += rate * (mean_over_ranks(doubles) - self.mean)
        self.square += rate * (mean_over_ranks(doubles.square()) - self.square)
        self.updates += 1.0
        now = self.deviation()
        heads.weight.mul_((deviation / now).float().unsqueeze(1))
        heads.bias.copy_((deviation * heads.bias.double() + mean - self.mean) / now)
