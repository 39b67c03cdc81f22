"""Hidden layers that are normalised over the batch, by batch renormalisation (Ioffe 2017,
https://arxiv.org/abs/1702.03275).

In training a layer is normalised by the mean and deviation of the batch, as in batch normalisation (Ioffe & Szegedy
2015). After `WARM_UP` batches it is then corrected towards the running statistics, by factors that are constants in the
gradient:

    (x - mean) / std * r + d    r = clip(std / running std, 1 / 3, 3)
                                d = clip((mean - running mean) / running std, -5, 5)

In evaluation it is normalised by the running statistics alone. Constants and the place of the norms (before the first
layer, and behind each activation) are those of Bhatt et al. 2024 (https://arxiv.org/abs/1902.05605).

Dimensions: `B` rows, `I` inputs, `U` hidden units, `F` features.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worker.learning.data_parallel import average
from worker.learning.networks.dense import DenseBody

MOMENTUM = 0.99
"""Part of the running statistics that stays at each batch."""
VARIANCE_EPSILON = 1e-3
WARM_UP = 100_000
"""Batches that are normalised by their own statistics alone, until the running ones can be relied on."""
LARGEST_SCALE, LARGEST_SHIFT = 3.0, 5.0


class BatchRenorm(nn.Module):
    """Normalises each feature over the batch, then scales and shifts it."""

    running_mean: Tensor
    running_variance: Tensor
    batches: Tensor

    def __init__(self, features: int) -> None:
        """Scale and shift start as the identity; the running mean is 0 and the variance 1."""
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_variance", torch.ones(features))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Return normalised features. In training mode update the running statistics."""
        running_std = (self.running_variance + VARIANCE_EPSILON).sqrt()
        if not self.training:
            return (inputs - self.running_mean) / running_std * self.scale + self.shift
        variance, mean = torch.var_mean(inputs, 0, correction=0)
        std = (variance + VARIANCE_EPSILON).sqrt()
        with torch.no_grad():
            warm = self.batches >= WARM_UP  # stays on the device
            r = (std / running_std).clamp(1.0 / LARGEST_SCALE, LARGEST_SCALE).where(warm, 1.0)
            d = ((mean - self.running_mean) / running_std).clamp(-LARGEST_SHIFT, LARGEST_SHIFT).where(warm, 0.0)
            statistics = average(torch.stack([mean, variance]))  # ranks keep the same ones
            self.running_mean.lerp_(statistics[0], 1.0 - MOMENTUM)
            self.running_variance.lerp_(statistics[1], 1.0 - MOMENTUM)
            self.batches += 1
        return ((inputs - mean) / std * r + d) * self.scale + self.shift


class BatchRenormBody(DenseBody):
    """Normalised inputs, then `num_layers` hidden layers of `units`: linear, activation, norm, ..."""

    def __init__(
        self, inputs: int, units: int, num_layers: int, generator: torch.Generator, *, activation: str
    ) -> None:
        super().__init__(inputs, units, num_layers, generator, activation=activation)
        self.norms = nn.ModuleList(BatchRenorm(width) for width in (inputs, *[units] * num_layers))

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B U"]:
        """Return the features behind the last norm."""
        first, *norms = self.norms
        hidden: Tensor = first(inputs)
        for layer, norm in zip(self.layers_in_order, norms, strict=True):
            hidden = norm(self.activate(layer(hidden)))
        return hidden
