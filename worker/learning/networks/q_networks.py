"""SAC's critics: two Q networks, a value network and its slowly moving copy, the target.

Each has `S` outputs for the `S` reward signals, a Q network one for each signal and each choice of all branches (or one
for each signal without branches). A Q network sees observation and continuous action, joined behind the encoders.

`StackedCritics` is for plain behaviors (`ludus.collector.layout`): the weights of Q1, Q2 and V lie on top of each
other, so that one batched product evaluates all three, and derivatives are written by hand. At the sizes of 3DBall
(64 units, batch 64) most of the time of an update is the cost of calling torch, not its arithmetic, and three networks
in one call cost little more than one (`benchmarks/sac.py`). `ModularCritics` is for everything else and differentiates
automatically. Both look alike from outside: derivatives by outputs go in and end in `parameter.grad`, whose storage
must exist.

Initial weights as in ML-Agents: hidden layers Kaiming normal, heads Xavier uniform for each signal; the target starts
as V.

Dimensions: `R` rows, which with a memory are sequences of `L` steps one after the other; `K` is `max(M, 1)`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.protocol.spec import ActionSpec, BehaviorSpec
from server.config.network import NetworkSettings
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.conditional import ConditionalBody
from worker.learning.networks.dense import ACTIVATIONS, Dense
from worker.learning.networks.encoder import Encoded

Q1, Q2, V = range(3)
"""Places in the stack."""


class Judgement(NamedTuple):
    """What the critics say of actions that were taken."""

    q: Float[Tensor, "2 R S K"]
    v: Float[Tensor, "R S"]


class Critics(Protocol):
    """Both Q networks, V and its target."""

    def judge(self, encoded: Encoded, continuous: Float[Tensor, "R C"], length: int) -> Judgement:
        """Return what the critics say of actions that were taken, and remember the way back."""

    def consider(self, continuous: Float[Tensor, "R C"]) -> Float[Tensor, "2 R S K"]:
        """Return what the Q networks say of other actions on the same observations, and remember the way back."""

    def by_action(self, by_q1: Float[Tensor, "R SK"]) -> Float[Tensor, "R C"]:
        """Carry the derivative of a loss by Q1, signal after signal, back to what was considered."""

    def backward(self, by_q: Float[Tensor, "2 R S K"], by_v: Float[Tensor, "R S"]) -> None:
        """Write the derivatives of a loss by all weights, given those by the judgement."""

    def foresee(self, encoded: Encoded, following: Encoded, length: int) -> Float[Tensor, "R S"]:
        """Return the target's values of what followed."""

    def begin(self, encoded: Encoded) -> Float[Tensor, "R S"]:
        """Return the target's values of observations that nothing came before."""

    def track(self, tau: float) -> None:
        """Move the target the part `tau` of its way to V."""


def build_critics(
    spec: BehaviorSpec, settings: NetworkSettings, signals: int, generator: torch.Generator
) -> "StackedCritics | ModularCritics":
    """Return the critics of a behavior. They take what an actor has encoded."""
    layout = BodyLayout.of(spec.observations, settings.model_dump(), spec.name)
    if layout.plain:
        return StackedCritics(layout, spec.actions, signals, generator)
    return ModularCritics(spec, settings, signals, generator)


class _Layer(NamedTuple):
    """What one hidden layer of some stacked networks made, before and after its activation."""

    linear: Float[Tensor, "nets R U"]
    output: Float[Tensor, "nets R U"]


class _Pass(NamedTuple):
    """One pass through some stacked networks."""

    inputs: Float[Tensor, "nets R I"]
    layers: list[_Layer]
    outputs: Float[Tensor, "nets R SK"]


class _Views(NamedTuple):
    """The parameters as each pass uses them, layer by layer. To make views and to find modules' attributes costs more
    than to multiply.
    """

    all: list[tuple[Tensor, Tensor]]
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


class _Ways:
    """The ways back of the last passes."""

    __slots__ = ("considered", "judged")
    judged: _Pass
    considered: _Pass


class StackedCritics(nn.Module):
    """Q1, Q2 and V as one stack of dense networks, and the target of V.

    V sees zeros in place of the action, and of its outputs only the first of each signal is used; the weights that this
    leaves over have derivatives of 0 and stay what they are.
    """

    def __init__(self, layout: BodyLayout, actions: ActionSpec, signals: int, generator: torch.Generator) -> None:
        super().__init__()
        self._inputs, self._actions = layout.vector_size, actions.continuous_size
        self._signals, self._choices = signals, max(actions.mask_size, 1)
        self._activation = ACTIVATIONS[layout.activation]
        widths = [self._inputs + self._actions, *[layout.hidden_units] * layout.num_layers]
        weights = [_kaiming_stack(before, after, generator) for before, after in pairwise(widths)]
        weights[0][V] *= math.sqrt(widths[0] / self._inputs)  # V's fan-in is without the action
        weights.append(_xavier_stack(layout.hidden_units, signals, self._choices, generator))
        self.weights = nn.ParameterList(nn.Parameter(weight) for weight in weights)
        self.biases = nn.ParameterList(nn.Parameter(weight.new_zeros(3, 1, weight.shape[2])) for weight in weights)
        self.target = nn.ParameterList(
            nn.Parameter(tensor[V].detach().clone(), requires_grad=False) for tensor in (*self.weights, *self.biases)
        )
        self._ways = _Ways()
        self._cached: list[_Views] = []

    def judge(self, encoded: Encoded, continuous: Float[Tensor, "R C"], length: int) -> Judgement:  # noqa: ARG002
        """Return what the critics say of actions that were taken, and remember the way back."""
        observations = encoded[0]
        rows, size = observations.shape
        inputs = observations.new_zeros((3, rows, size + self._actions))
        inputs[:, :, :size] = observations
        if self._actions:
            inputs[:V, :, size:] = continuous
        self._ways.judged = self._forward(inputs, self._views().all)
        outputs = self._ways.judged.outputs.view(3, rows, self._signals, self._choices)
        return Judgement(outputs[:V], outputs[V, :, :, 0])

    def consider(self, continuous: Float[Tensor, "R C"]) -> Float[Tensor, "2 R S K"]:
        """Return what the Q networks say of other actions on the same observations, and remember the way back."""
        inputs = self._ways.judged.inputs[:V].clone()
        inputs[:, :, self._inputs :] = continuous
        self._ways.considered = considered = self._forward(inputs, self._views().q)
        return considered.outputs.view(2, len(continuous), self._signals, self._choices)

    def by_action(self, by_q1: Float[Tensor, "R SK"]) -> Float[Tensor, "R C"]:
        """Carry the derivative of a loss by Q1, signal after signal, back to what was considered."""
        *weights, last = self._views().q1_back
        by_output = by_q1 @ last
        for weight, layer in zip(reversed(weights), reversed(self._ways.considered.layers), strict=True):
            by_output = self._activation.backward(by_output, layer.linear[Q1], layer.output[Q1]) @ weight
        return by_output

    def backward(self, by_q: Float[Tensor, "2 R S K"], by_v: Float[Tensor, "R S"]) -> None:
        """Write the derivatives of a loss by all weights, given those by the judgement."""
        inputs, layers, outputs = self._ways.judged
        views = self._views()
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
                by_output = self._activation.backward(by_below, layers[index - 1].linear, below)

    def foresee(self, encoded: Encoded, following: Encoded, length: int) -> Float[Tensor, "R S"]:  # noqa: ARG002
        """Return the target's values of what followed."""
        return self.begin(following)

    def begin(self, encoded: Encoded) -> Float[Tensor, "R S"]:
        """Return the target's values of observations: without a memory it is no matter what came before."""
        target = self._views().target
        weights, biases = target[: len(target) // 2], target[len(target) // 2 :]
        hidden = torch.addmm(biases[0], encoded[0], weights[0][: self._inputs])
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            hidden = torch.addmm(bias, self._activation.forward(hidden), weight)
        return hidden[:, :: self._choices]

    def track(self, tau: float) -> None:
        """Move the target the part `tau` of its way to V."""
        views = self._views()
        torch._foreach_lerp_(views.target, views.v, tau)

    def _forward(self, inputs: Float[Tensor, "nets R I"], parameters: list[tuple[Tensor, Tensor]]) -> _Pass:
        layers: list[_Layer] = []
        output = inputs
        *hidden, (last_weight, last_bias) = parameters
        for weight, bias in hidden:
            linear = torch.baddbmm(bias, output, weight)
            output = self._activation.forward(linear)
            layers.append(_Layer(linear, output))
        return _Pass(inputs, layers, torch.baddbmm(last_bias, output, last_weight))

    def _views(self) -> _Views:
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
                all=pairs,
                q=[(weight[:V], bias[:V]) for weight, bias in pairs],
                back=[weight.transpose(1, 2) for weight, _ in pairs],
                q1_back=[weight.t() for weight in q1],
                gradients=gradients,
                v=[weight[V] for weight, _ in pairs] + [bias[V] for _, bias in pairs],
                target=[part.detach() for part in self.target],
            )
            self._cached.append(views)
        return self._cached[0]


def _kaiming_stack(inputs: int, outputs: int, generator: torch.Generator) -> Float[Tensor, "3 I U"]:
    """Return weights from `N(0, 1 / inputs)`."""
    return torch.randn(3, inputs, outputs, generator=generator) / math.sqrt(inputs)


def _xavier_stack(inputs: int, signals: int, choices: int, generator: torch.Generator) -> Float[Tensor, "3 U SK"]:
    """Return weights uniform in `+-sqrt(6 / (inputs + outputs))`, the outputs being those of one signal."""
    weights = torch.rand(3, inputs, signals * choices, generator=generator).mul_(2.0).sub_(1.0)
    weights[:V] *= math.sqrt(6.0 / (inputs + choices))
    weights[V] *= math.sqrt(6.0 / (inputs + 1))
    return weights


class _Network(nn.Module):
    """A body, and heads for each signal."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        outputs: int,
        generator: torch.Generator,
        actions: int = 0,
    ) -> None:
        super().__init__()
        self.body = NetworkBody(spec.observations, settings, generator, extra_inputs=actions, normalizes=False)
        self.heads = Dense(self.body.features, signals * outputs)
        bound = math.sqrt(6.0 / (self.body.features + outputs))
        nn.init.uniform_(self.heads.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.heads.bias)

    def encoding(self, encoded: Encoded) -> Float[Tensor, "R I"]:
        """Return what the encoders make of observations: the costly part, the same for every action."""
        encoding: Tensor = self.body.encoder(encoded)
        return encoding

    def forward(
        self, encoding: Float[Tensor, "R I"], continuous: Float[Tensor, "R C"] | None, length: int
    ) -> Float[Tensor, "R SK"]:
        """Return the heads for encodings and, in a Q network, actions. Memories are zero before each sequence."""
        body = self.body
        inputs = encoding if continuous is None else torch.cat([encoding, continuous], 1)
        hidden = body.hidden
        features = (
            hidden(inputs, body.encoder.goal(encoding)) if isinstance(hidden, ConditionalBody) else hidden(inputs)
        )
        if body.memory is not None:
            features, _ = body.memory(features, None, length)
        heads: Tensor = self.heads(features)
        return heads.float()  # from bfloat16, where torch.autocast chose it


class ModularCritics(nn.Module):
    """Q1, Q2, V and the target as networks of any kind: pictures, sets of entities, goals, memories."""

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings, signals: int, generator: torch.Generator) -> None:
        super().__init__()
        actions = spec.actions
        self._signals, self._choices, self._actions = signals, max(actions.mask_size, 1), actions.continuous_size
        self.q = nn.ModuleList(
            _Network(spec, settings, signals, self._choices, generator, actions.continuous_size) for _ in range(2)
        )
        self.v = _Network(spec, settings, signals, 1, generator)
        self.target = _Network(spec, settings, signals, 1, generator).requires_grad_(False)
        self.track(1.0)
        self._encodings: list[Tensor] = []
        self._length = 1
        self._judged: list[Tensor] = []
        self._considered: tuple[Tensor, Tensor] | None = None

    def judge(self, encoded: Encoded, continuous: Float[Tensor, "R C"], length: int) -> Judgement:
        """Return what the critics say of actions that were taken, and remember the way back."""
        action = continuous if self._actions else None
        with torch.enable_grad():
            encodings = [network.encoding(encoded) for network in self._q_networks()]
            q = [
                network(encoding, action, length)
                for network, encoding in zip(self._q_networks(), encodings, strict=True)
            ]
            v = self.v(self.v.encoding(encoded), None, length)
        self._encodings, self._length = [encoding.detach() for encoding in encodings], length
        self._judged = [*q, v]
        return Judgement(self._by_signal([one.detach() for one in q]), v.detach())

    def consider(self, continuous: Float[Tensor, "R C"]) -> Float[Tensor, "2 R S K"]:
        """Return what the Q networks say of other actions on the same observations, and remember the way back."""
        first, second = self._q_networks()
        with torch.enable_grad():
            action = continuous.detach().requires_grad_()
            q1 = first(self._encodings[Q1], action, self._length)
        q2 = second(self._encodings[Q2], continuous, self._length)
        self._considered = (q1, action)
        return self._by_signal([q1.detach(), q2])

    def by_action(self, by_q1: Float[Tensor, "R SK"]) -> Float[Tensor, "R C"]:
        """Carry the derivative of a loss by Q1, signal after signal, back to what was considered."""
        assert self._considered is not None
        q1, action = self._considered
        (by_action,) = torch.autograd.grad([q1], [action], [by_q1])
        return by_action

    def backward(self, by_q: Float[Tensor, "2 R S K"], by_v: Float[Tensor, "R S"]) -> None:
        """Write the derivatives of a loss by all weights, given those by the judgement."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        torch.autograd.backward(self._judged, [*by_q.flatten(2).unbind(), by_v])
        self._judged = []

    def foresee(self, encoded: Encoded, following: Encoded, length: int) -> Float[Tensor, "R S"]:
        """Return the target's values of what followed.

        With a memory the target sees each sequence from its first observation on, then the one behind its end.
        """
        target = self.target
        if target.body.memory is None:
            return self.begin(following)
        encoding = target.encoding(encoded).view(-1, length, target.body.encoder.size)  # (Q, L, I)
        behind = target.encoding(following).view(-1, length, target.body.encoder.size)
        whole = torch.cat([encoding[:, :1], behind], 1)  # (Q, L + 1, I)
        values: Tensor = target(whole.flatten(0, 1), None, length + 1)
        return values.view(-1, length + 1, self._signals)[:, 1:].flatten(0, 1)

    def begin(self, encoded: Encoded) -> Float[Tensor, "R S"]:
        """Return the target's values of observations that nothing came before."""
        values: Tensor = self.target(self.target.encoding(encoded), None, 1)
        return values

    def track(self, tau: float) -> None:
        """Move the target the part `tau` of its way to V."""
        sources = [parameter.detach() for parameter in self.v.parameters()]
        torch._foreach_lerp_(list(self.target.parameters()), sources, tau)

    def _q_networks(self) -> list[_Network]:
        return [network for network in self.q if isinstance(network, _Network)]

    def _by_signal(self, q: Sequence[Tensor]) -> Float[Tensor, "2 R S K"]:
        stacked = torch.stack(list(q))
        return stacked.view(*stacked.shape[:2], self._signals, self._choices)
