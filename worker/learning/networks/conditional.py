"""Goal conditioning: a hypernetwork makes the last hidden layer from the goal (Ha et al. 2016; ML-Agents' `hyper`).

The hidden layers before it are ordinary. The last one has the weights `W(goal)`, another matrix for each row, and a
learned bias of its own. `W` is two hidden layers over the goal's encoding, a norm without parameters, and a linear
layer with one output for each weight, whose own weights start uniform in `+-1 / sqrt(units * inputs)`.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import NORM_EPSILON
from worker.learning.networks.dense import Dense, DenseBody, torch_function

HYPER_LAYERS = 2


class ConditionalBody(nn.Module):
    """`num_layers` hidden layers of `units`, of which a hypernetwork makes the last."""

    def __init__(
        self, inputs: int, goal_size: int, units: int, num_layers: int, generator: torch.Generator, *, activation: str
    ) -> None:
        super().__init__()
        self._activate = torch_function(activation)
        self.units = units
        self.before = DenseBody(inputs, units, num_layers - 1, generator, activation=activation)
        self.last_inputs = units if num_layers > 1 else inputs
        self.hyper = DenseBody(goal_size, units, HYPER_LAYERS, generator, activation=activation)
        self.weights = Dense(units, self.last_inputs * units)
        bound = 1.0 / math.sqrt(units * self.last_inputs)
        nn.init.uniform_(self.weights.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.weights.bias)
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, inputs: Float[Tensor, "B I"], goal: Float[Tensor, "B K"]) -> Float[Tensor, "B U"]:
        """Return the features of inputs under their goals."""
        hidden = self.before(inputs)
        normed = F.layer_norm(self.hyper(goal), (self.units,), eps=NORM_EPSILON)
        weights = self.weights(normed).view(-1, self.last_inputs, self.units)  # (B, inputs, units)
        linear = torch.bmm(hidden.unsqueeze(1), weights).squeeze(1) + self.bias
        return self._activate(linear)
