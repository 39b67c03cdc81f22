"""Running mean and variance of vector observations, as ML-Agents keeps them.

Statistics start as one imagined observation: count 1, mean 0, sum of squared deviations 1. Merging a batch is exact
(Chan, Golub & LeVeque 1979), so merging two batches in either order, or as one, gives the same result.
They are kept in float64: a float32 count stops growing at 16.7 million, and a sum of squares loses its small terms.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import NORMALIZED_LIMIT
from worker.learning.data_parallel import total


class Normalizer(nn.Module):
    """Scales observations to about mean 0 and standard deviation 1, element by element."""

    count: Tensor
    mean: Tensor
    squares: Tensor
    """Sum of squared deviations from the mean; the variance is `squares / count`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.ones(size, dtype=torch.float64))

    def std(self) -> Float[Tensor, " O"]:
        """Return the standard deviation of each element, float64."""
        return (self.squares / self.count).sqrt()

    def forward(self, observations: Float[Tensor, "B O"]) -> Float[Tensor, "B O"]:
        """Return `clip((x - mean) / std, -5, 5)`, both statistics rounded to float32 as they are published."""
        return ((observations - self.mean.float()) / self.std().float()).clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)

    @torch.no_grad()
    def set_scale(self, *, mean: Float[Tensor, " O"], std: Float[Tensor, " O"]) -> None:
        """Normalise by these from now on, as a copy of another normalizer that has no history."""
        self.mean.copy_(mean)
        self.squares.copy_(std.double() ** 2)
        self.count.fill_(1.0)

    @torch.no_grad()
    def merge(self, observations: Float[Tensor, "B O"]) -> None:
        """Add a batch of raw observations to the statistics; where several ranks learn as one, the batches of all."""
        deviations = observations.double() - self.mean  # from the old mean
        count = self.count + total(torch.full_like(self.count, len(observations)))
        shift = total(deviations.sum(0)) / count
        self.squares += total(((deviations - shift) * deviations).sum(0))
        self.mean += shift
        self.count.copy_(count)
