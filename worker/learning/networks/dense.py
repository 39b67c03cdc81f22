"""Dense hidden layers, how their weights start out (ML-Agents' `LinearEncoder`), and their derivatives.

Every layer has two faces. `forward` is ordinary torch: what is exported and what automatic differentiation sees.
`record` and `backward` are the same mathematics without a graph, for learners: the derivatives of a small network take
less time than the bookkeeping of an automatic graph (0.6 against 1.0 ms for a whole minibatch of 64, two networks of
2 x 128 units on one core). `backward` writes to `parameter.grad`, whose storage must exist (see `optimizer`).
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor, nn


class Dense(nn.Linear):
    """A linear layer that can write its own gradients."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, device="meta")  # torch's own initialisation draws from the global generator
        self.to_empty(device="cpu")

    def backward(self, inputs: Float[Tensor, "B I"], by_output: Float[Tensor, "B U"]) -> None:
        """Write the derivatives of a loss by weight and bias, given the one by the output."""
        torch.mm(by_output.t(), inputs, out=self.weight.grad)
        torch.sum(by_output, 0, out=self.bias.grad)

    def by_inputs(self, by_output: Float[Tensor, "B U"]) -> Float[Tensor, "B I"]:
        """Return the derivative of a loss by the inputs, given the one by the output."""
        return by_output @ self.weight


def kaiming_dense(inputs: int, outputs: int, scale: float, generator: torch.Generator) -> Dense:
    """Return a layer with weights from `N(0, (scale / sqrt(inputs))^2)` and bias 0."""
    layer = Dense(inputs, outputs)
    nn.init.normal_(layer.weight, 0.0, scale / math.sqrt(inputs), generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def normal_dense(inputs: int, outputs: int, deviation: float, generator: torch.Generator) -> Dense:
    """Return a layer with weights from `N(0, deviation^2)`, whatever its width, and bias 0."""
    layer = Dense(inputs, outputs)
    nn.init.normal_(layer.weight, 0.0, deviation, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def xavier_dense(inputs: int, outputs: int, generator: torch.Generator) -> Dense:
    """Return a layer with weights uniform in `+-sqrt(6 / (inputs + outputs))` and bias 0."""
    layer = Dense(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Activation(NamedTuple):
    """A nonlinearity and its derivative."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(derivative by the output, input, output) -> derivative by the input."""


ACTIVATIONS: Mapping[str, Activation] = {
    "swish": Activation(F.silu, lambda by_output, linear, _: torch.ops.aten.silu_backward(by_output, linear)),
    "tanh": Activation(torch.tanh, lambda by_output, _, output: torch.ops.aten.tanh_backward(by_output, output)),
    "relu": Activation(F.relu, lambda by_output, linear, _: torch.ops.aten.threshold_backward(by_output, linear, 0)),
}
"""By `network_settings.activation`. Swish is `x * sigmoid(x)` (Ramachandran et al. 2017)."""


class Recorded(NamedTuple):
    """What one hidden layer saw and made, before and after its activation."""

    inputs: Float[Tensor, "B I"]
    linear: Float[Tensor, "B U"]
    output: Float[Tensor, "B U"]


class DenseBody(nn.Module):
    """`num_layers` hidden layers of `units`: linear, activation, linear, activation, ..."""

    def __init__(
        self,
        inputs: int,
        units: int,
        num_layers: int,
        generator: torch.Generator,
        *,
        activation: str = "swish",
        scale: float = 1.0,
    ) -> None:
        """`scale` is that of the initial weights (`kaiming_dense`)."""
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        widths = [inputs, *[units] * num_layers]
        self._layers = [kaiming_dense(before, after, scale, generator) for before, after in pairwise(widths)]
        self.layers = nn.ModuleList(self._layers)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B U"]:
        """Return the features of the last hidden layer."""
        for layer in self._layers:
            inputs = self._activation.forward(layer(inputs))
        return inputs

    def record(self, inputs: Float[Tensor, "B I"]) -> tuple[Float[Tensor, "B U"], list[Recorded]]:
        """Return the features, and what `backward` needs."""
        recorded = []
        for layer in self._layers:
            linear = F.linear(inputs, layer.weight, layer.bias)
            output = self._activation.forward(linear)
            recorded.append(Recorded(inputs, linear, output))
            inputs = output
        return inputs, recorded

    def backward(self, recorded: list[Recorded], by_features: Float[Tensor, "B U"]) -> None:
        """Write the derivatives of a loss by all weights, given the one by the features."""
        for layer, (inputs, linear, output) in zip(reversed(self._layers), reversed(recorded), strict=True):
            by_linear = self._activation.backward(by_features, linear, output)
            layer.backward(inputs, by_linear)
            if layer is not self._layers[0]:
                by_features = layer.by_inputs(by_linear)
