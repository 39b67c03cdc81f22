"""Hidden layers with layer norms, by `network_settings.hidden_type`.

`layer_norm`: each layer's output is normalised, then activated (Ba et al. 2016, https://arxiv.org/abs/1607.06450). In
critics it bounds what values of unseen actions can become (Ball et al. 2023, https://arxiv.org/abs/2302.02948).

`simba` (Lee et al. 2024, https://arxiv.org/abs/2410.09754, section 4):

    x -> embedding -> [h + narrowing(activation(widening(norm(h))))] for each block -> norm

The hidden layer of a block is four times as wide as the block. Initial weights as there: the embedding orthogonal, the
layers of blocks from `N(0, 2 / inputs)` (He et al. 2015). SimBa also normalises observations by their running mean and
variance, which is `normalize: true`, and has ReLU, which is `activation: relu`. Its Adam decays weights; ours does not.

Dimensions: `B` rows, `I` inputs, `U` hidden units.
"""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import EXPANSION, NORM_EPSILON, BodyLayout
from worker.learning.networks.dense import Dense, DenseBody, kaiming_dense, torch_function

HE_SCALE = math.sqrt(2.0)


def layer_norm(units: int) -> nn.LayerNorm:
    """Return a norm that starts as the identity behind it: scale 1, shift 0."""
    return nn.LayerNorm(units, eps=NORM_EPSILON)


class LayerNormBody(nn.Module):
    """`num_layers` hidden layers of `units`: linear, norm, activation, ..."""

    def __init__(
        self, inputs: int, units: int, num_layers: int, generator: torch.Generator, *, activation: str
    ) -> None:
        super().__init__()
        self.activate = torch_function(activation)
        widths = [inputs, *[units] * num_layers]
        self.layers = nn.ModuleList(kaiming_dense(before, after, 1.0, generator) for before, after in pairwise(widths))
        self.norms = nn.ModuleList(layer_norm(units) for _ in range(num_layers))

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B U"]:
        """Return the features of the last hidden layer."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            inputs = self.activate(norm(layer(inputs)))
        return inputs


class SimbaBlock(nn.Module):
    """`h + narrowing(activation(widening(norm(h))))`."""

    def __init__(self, units: int, generator: torch.Generator, *, activation: str) -> None:
        super().__init__()
        self.activate = torch_function(activation)
        self.norm = layer_norm(units)
        self.widening = kaiming_dense(units, EXPANSION * units, HE_SCALE, generator)
        self.narrowing = kaiming_dense(EXPANSION * units, units, HE_SCALE, generator)

    def forward(self, hidden: Float[Tensor, "B U"]) -> Float[Tensor, "B U"]:
        """Return the input with the block's correction."""
        corrected: Tensor = hidden + self.narrowing(self.activate(self.widening(self.norm(hidden))))
        return corrected


class SimbaBody(nn.Module):
    """An embedding, `num_layers` blocks of `units`, and a norm."""

    def __init__(
        self, inputs: int, units: int, num_layers: int, generator: torch.Generator, *, activation: str
    ) -> None:
        super().__init__()
        self.embedding = Dense(inputs, units)
        nn.init.orthogonal_(self.embedding.weight, generator=generator)
        nn.init.zeros_(self.embedding.bias)
        self.blocks = nn.ModuleList(SimbaBlock(units, generator, activation=activation) for _ in range(num_layers))
        self.norm = layer_norm(units)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B U"]:
        """Return the features behind the last norm."""
        hidden = self.embedding(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        features: Tensor = self.norm(hidden)
        return features


def hidden_body(inputs: int, layout: BodyLayout, generator: torch.Generator) -> DenseBody | LayerNormBody | SimbaBody:
    """Return the hidden layers of a body, new."""
    units, layers, activation = layout.hidden_units, layout.num_layers, layout.activation
    match layout.hidden_type:
        case "layer_norm":
            return LayerNormBody(inputs, units, layers, generator, activation=activation)
        case "simba":
            return SimbaBody(inputs, units, layers, generator, activation=activation)
        case _:
            return DenseBody(inputs, units, layers, generator, activation=activation)
