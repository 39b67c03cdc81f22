"""SAC's critics for MLPs: the weights of Q1, Q2 and V lie on top of each other, and one batched product evaluates all.

At the sizes of 3DBall (64 units, batch 64) most of the time of an update is the cost of calling torch, not its
arithmetic, and three networks in one call cost little more than one. `q_values` and `q_values_of` are ordinary torch
that autograd differentiates; `backward` and `by_action` are the same derivatives by hand, for `fast.sac`.

Dimensions as in `networks.soft_actor_critic`.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.protocol.spec import ActionSpec
from worker.learning.fast.dense import ACTIVATION_GRADIENTS
from worker.learning.networks.dense import torch_function
from worker.learning.networks.encoder import Encoded

Q1, Q2, V = range(3)
"""Places in the stack."""


class QPrediction(NamedTuple):
    """The critics' values of observations and of the actions that were taken."""

    q: Float[Tensor, "2 R S K"]
    v: Float[Tensor, "R S"]
    passed: Any
    """For `q_values_of`."""


class _Layer(NamedTuple):
    """The output of one hidden layer of stacked networks, before and after its activation."""

    linear: Float[Tensor, "nets R U"]
    output: Float[Tensor, "nets R U"]


class Pass(NamedTuple):
    """One pass through some stacked networks."""

    inputs: Float[Tensor, "nets R I"]
    layers: list[_Layer]
    outputs: Float[Tensor, "nets R SK"]


class _Views(NamedTuple):
    """The parameters as each pass uses them, layer by layer: making views takes longer than multiplying."""

    stack: list[tuple[Tensor, Tensor]]
    """Weights and biases of the whole stack."""
    q: list[tuple[Tensor, Tensor]]
    """Those of the Q networks."""
    back: list[Tensor]
    """Weights of the whole stack, transposed."""
    q1_back: list[Tensor]
    """Those of Q1; of the first layer only what meets the action."""
    gradients: list[tuple[Tensor, Tensor]]
    v: list[Tensor]
    """All of V: weights, then biases."""
    target: list[Tensor]
    """All of the target, in the same order."""


class StackedCritics(nn.Module):
    """Q1, Q2 and V as one stack of dense networks, and the target of V.

    V sees zeros in place of the action, and of its outputs only the first of each signal is used; the weights that this
    leaves over have derivatives of 0 and stay what they are.
    """

    def __init__(self, layout: BodyLayout, actions: ActionSpec, signals: int, generator: torch.Generator) -> None:
        super().__init__()
        self._inputs, self._actions = layout.vector_size, actions.continuous_size
        self._signals, self._choices = signals, max(actions.mask_size, 1)
        self.activation = layout.activation
        self._activate = torch_function(layout.activation)
        widths = [self._inputs + self._actions, *[layout.hidden_units] * layout.num_layers]
        # from N(0, 1 / inputs), as `kaiming_dense`
        weights = [torch.randn(3, *pair, generator=generator) / math.sqrt(pair[0]) for pair in pairwise(widths)]
        weights[0][V] *= math.sqrt(widths[0] / self._inputs)  # V's fan-in is without the action
        # uniform in `+-sqrt(6 / (inputs + outputs))`, the outputs being those of one signal
        units, choices = layout.hidden_units, self._choices
        heads = torch.rand(3, units, signals * choices, generator=generator).mul_(2.0).sub_(1.0)
        heads[:V] *= math.sqrt(6.0 / (units + choices))
        heads[V] *= math.sqrt(6.0 / (units + 1))
        weights.append(heads)
        self.weights = nn.ParameterList(nn.Parameter(weight) for weight in weights)
        self.biases = nn.ParameterList(nn.Parameter(weight.new_zeros(3, 1, weight.shape[2])) for weight in weights)
        self.target = nn.ParameterList(
            nn.Parameter(tensor[V].detach().clone(), requires_grad=False) for tensor in (*self.weights, *self.biases)
        )
        self._cached: list[_Views] = []

    def q_values(self, encoded: Encoded, continuous: Float[Tensor, "R C"], length: int) -> QPrediction:  # noqa: ARG002
        """Return Q of actions that were taken, and V."""
        observations = encoded[0]
        rows, size = observations.shape
        inputs = observations.new_zeros((3, rows, size + self._actions))
        inputs[:, :, :size] = observations
        if self._actions:
            inputs[:V, :, size:] = continuous
        parameters = self.views().stack  # without a graph
        if torch.is_grad_enabled():
            parameters = list(zip(self.weights, self.biases, strict=True))
        passed = self._forward(inputs, parameters)
        outputs = passed.outputs.view(3, rows, self._signals, self._choices)
        return QPrediction(outputs[:V], outputs[V, :, :, 0], passed)

    def q_values_of(self, prediction: QPrediction, continuous: Float[Tensor, "R C"]) -> Float[Tensor, "2 R S K"]:
        """Return Q of other actions on the same observations. The weights are constants."""
        return self.by_signal(self.pass_of(prediction, continuous).outputs)

    def pass_of(self, prediction: QPrediction, continuous: Float[Tensor, "R C"]) -> Pass:
        """Return the pass of `q_values_of`, from which `by_action` goes back."""
        observations = prediction.passed.inputs[:V, :, : self._inputs]
        return self._forward(torch.cat([observations, continuous.expand(2, -1, -1)], 2), self.views().q)

    def by_signal(self, outputs: Float[Tensor, "2 R SK"]) -> Float[Tensor, "2 R S K"]:
        """Return a pass's outputs by signal and choice."""
        return outputs.view(2, -1, self._signals, self._choices)

    def by_action(self, considered: Pass, by_q1: Float[Tensor, "R SK"]) -> Float[Tensor, "R C"]:
        """Return the derivative of a loss by the actions, given the one by Q1, signal after signal."""
        *weights, last = self.views().q1_back
        by_output, by_input = by_q1 @ last, ACTIVATION_GRADIENTS[self.activation]
        for weight, layer in zip(reversed(weights), reversed(considered.layers), strict=True):
            by_output = by_input(by_output, layer.linear[Q1], layer.output[Q1]) @ weight
        return by_output

    def backward(self, passed: Pass, by_q: Float[Tensor, "2 R S K"], by_v: Float[Tensor, "R S"]) -> None:
        """Write the derivatives of a loss by all weights to their `grad`, given those by the predictions of a pass."""
        inputs, layers, outputs = passed
        views, by_input = self.views(), ACTIVATION_GRADIENTS[self.activation]
        if self._choices == 1:
            by_output = torch.cat((by_q.squeeze(3), by_v.unsqueeze(0)))
        else:
            by_output = torch.zeros_like(outputs)
            by_output[:V] = by_q.flatten(2)
            by_output[V, :, :: self._choices] = by_v
        for index in reversed(range(len(layers) + 1)):
            below = layers[index - 1].output if index else inputs
            by_weight, by_bias = views.gradients[index]
            torch.bmm(below.transpose(1, 2), by_output, out=by_weight)
            torch.sum(by_output, 1, keepdim=True, out=by_bias)
            if index:
                by_below = torch.bmm(by_output, views.back[index])
                by_output = by_input(by_below, layers[index - 1].linear, below)

    def target_values(self, encoded: Encoded, following: Encoded, length: int) -> Float[Tensor, "R S"]:  # noqa: ARG002
        """Return the target's values of the following observations."""
        return self.initial_values(following)

    def initial_values(self, encoded: Encoded) -> Float[Tensor, "R S"]:
        """Return the target's values of observations, which do not depend on what came before."""
        target = self.views().target
        weights, biases = target[: len(target) // 2], target[len(target) // 2 :]
        hidden = torch.addmm(biases[0], encoded[0], weights[0][: self._inputs])
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            hidden = torch.addmm(bias, self._activate(hidden), weight)
        return hidden[:, :: self._choices]

    def track(self, tau: float) -> None:
        """Move the target the part `tau` of its way to V."""
        views = self.views()
        torch._foreach_lerp_(views.target, views.v, tau)

    def _forward(self, inputs: Float[Tensor, "nets R I"], parameters: list[tuple[Tensor, Tensor]]) -> Pass:
        layers: list[_Layer] = []
        output = inputs
        *hidden, (last_weight, last_bias) = parameters
        for weight, bias in hidden:
            linear = torch.baddbmm(bias, output, weight)
            output = self._activate(linear)
            layers.append(_Layer(linear, output))
        return Pass(inputs, layers, torch.baddbmm(last_bias, output, last_weight))

    def views(self) -> _Views:
        """Return the parameters' views, which are made at the first use: from then on the storage must stay."""
        if not self._cached:
            pairs = [(weight.detach(), bias.detach()) for weight, bias in zip(self.weights, self.biases, strict=True)]
            q1 = [weight[Q1] for weight, _ in pairs]
            q1[0] = q1[0][self._inputs :]
            gradients = []
            for weight, bias in zip(self.weights, self.biases, strict=True):
                assert weight.grad is not None
                assert bias.grad is not None
                gradients.append((weight.grad, bias.grad))
            views = _Views(
                stack=pairs,
                q=[(weight[:V], bias[:V]) for weight, bias in pairs],
                back=[weight.transpose(1, 2) for weight, _ in pairs],
                q1_back=[weight.t() for weight in q1],
                gradients=gradients,
                v=[weight[V] for weight, _ in pairs] + [bias[V] for _, bias in pairs],
                target=[part.detach() for part in self.target],
            )
            self._cached.append(views)
        return self._cached[0]
