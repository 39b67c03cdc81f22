"""Dense hidden layers, and how their weights start out (ML-Agents' `LinearEncoder`)."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.activations import ACTIVATIONS, Expression, sigmoid, x


class Dense(nn.Linear):
    """A linear layer whose weights the caller initialises."""

    def reset_parameters(self) -> None:
        """Do nothing: torch's own initialisation draws from the global generator."""


def kaiming_dense(inputs: int, outputs: int, scale: float, generator: torch.Generator) -> Dense:
    """Return a layer with weights from `N(0, (scale / sqrt(inputs))^2)` and bias 0; without inputs it is its bias."""
    layer = Dense(inputs, outputs)
    nn.init.normal_(layer.weight, 0.0, scale / math.sqrt(max(inputs, 1)), generator=generator)
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


TORCH: Mapping[str, Callable[..., Tensor]] = {
    "mul": torch.mul,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
}
"""The operations of `ludus.collector.activations`."""
FUSED: Mapping[Expression, Callable[[Tensor], Tensor]] = {x * sigmoid(x): F.silu}
"""Whole expressions that torch has as one function."""


def torch_function(activation: str) -> Callable[[Tensor], Tensor]:
    """Return an activation in torch."""
    expression = ACTIVATIONS[activation]
    if not any(operand.operands for operand in expression.operands):  # a single operation on the input
        return TORCH[expression.operation]
    return FUSED.get(expression, lambda linear: expression.evaluate(linear, TORCH))


class DenseBody(nn.Module):
    """`num_layers` hidden layers of `units`: linear, activation, linear, activation, ..."""

    def __init__(
        self,
        inputs: int,
        units: int,
        num_layers: int,
        generator: torch.Generator,
        *,
        activation: str,
        scale: float = 1.0,
    ) -> None:
        """`scale` is that of the initial weights (`kaiming_dense`)."""
        super().__init__()
        self.activation, self.activate = activation, torch_function(activation)
        widths = [inputs, *[units] * num_layers]
        self.layers_in_order = [kaiming_dense(before, after, scale, generator) for before, after in pairwise(widths)]
        self.layers = nn.ModuleList(self.layers_in_order)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B U"]:
        """Return the features of the last hidden layer."""
        for layer in self.layers_in_order:
            inputs = self.activate(layer(inputs))
        return inputs
