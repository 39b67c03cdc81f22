"""The gradient of hidden layers by hand.

The derivatives of a small network take less time than the records that autograd keeps of it. A pass keeps the input and
output of each layer; `backward` writes to `parameter.grad`, whose storage must exist (`fast.adam`). Call both where
torch records no graph.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor

from worker.learning.networks.dense import Dense, DenseBody

ACTIVATION_GRADIENTS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "swish": lambda by_output, linear, _: torch.ops.aten.silu_backward(by_output, linear),
    "tanh": lambda by_output, _, output: torch.ops.aten.tanh_backward(by_output, output),
    "relu": lambda by_output, linear, _: torch.ops.aten.threshold_backward(by_output, linear, 0),
}
"""By `network_settings.activation`: (derivative by the output, input, output) -> derivative by the input."""


class LayerActivations(NamedTuple):
    """One hidden layer's input, and its output before and after the activation."""

    inputs: Float[Tensor, "B I"]
    linear: Float[Tensor, "B U"]
    output: Float[Tensor, "B U"]


def forward(body: DenseBody, inputs: Float[Tensor, "B I"]) -> tuple[Float[Tensor, "B U"], list[LayerActivations]]:
    """Return the features, and the activations for `backward`."""
    passed = []
    for layer in body.layers_in_order:
        linear = F.linear(inputs, layer.weight, layer.bias)
        output = body.activate(linear)
        passed.append(LayerActivations(inputs, linear, output))
        inputs = output
    return inputs, passed


def backward(body: DenseBody, passed: list[LayerActivations], by_features: Float[Tensor, "B U"]) -> None:
    """Write the derivatives of a loss by all weights, given the one by the features."""
    layers, by_input = body.layers_in_order, ACTIVATION_GRADIENTS[body.activation]
    for layer, (inputs, linear, output) in zip(reversed(layers), reversed(passed), strict=True):
        by_linear = by_input(by_features, linear, output)
        linear_backward(layer, inputs, by_linear)
        if layer is not layers[0]:
            by_features = by_linear @ layer.weight


def linear_backward(layer: Dense, inputs: Float[Tensor, "B I"], by_output: Float[Tensor, "B U"]) -> None:
    """Write the derivatives of a loss by a layer's weight and bias, given the one by its output."""
    torch.mm(by_output.t(), inputs, out=layer.weight.grad)
    torch.sum(by_output, 0, out=layer.bias.grad)
