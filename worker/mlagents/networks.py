"""Which tensors of ML-Agents make our networks: one function for each of them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.collector.spec_checks import ObservationKind
from ludus.protocol.spec import BehaviorSpec
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.actor import Actor
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.conditional import HYPER_LAYERS, ConditionalBody
from worker.learning.networks.dense import DenseBody
from worker.learning.networks.encoder import ObservationEncoder
from worker.learning.networks.memory import Memory
from worker.learning.networks.multi_agent import TeamCritic
from worker.learning.networks.normalizer import Normalizer
from worker.learning.networks.q_networks import ModularCritics
from worker.learning.networks.visual import ResidualBlock, VisualEncoder
from worker.learning.rewards.curiosity import CuriosityNetworks
from worker.learning.rewards.gail import Discriminator
from worker.learning.rewards.rnd import RNDNetworks
from worker.mlagents.file import POLICY, Shape

CRITIC, VALUE, TARGET = "Optimizer:critic", "Optimizer:value_network", "Optimizer:target_network"
Q_NETWORK = "Optimizer:q_network"
Q = (f"{Q_NETWORK}/q1_network", f"{Q_NETWORK}/q2_network")

Find = Callable[[str, Shape], Tensor]
"""Return the tensor that has a name; a shape is what it must have."""


class Translation:
    """Values for parameters and buffers of ours, made of tensors that have ML-Agents' names."""

    def __init__(self, find: Find) -> None:
        self.find = find
        self._values: dict[int, Tensor] = {}
        self._owners: list[Tensor] = []

    def set(self, owner: Tensor, value: Tensor) -> None:
        """Set the value of a parameter or buffer."""
        assert owner.shape == value.shape
        self._values[id(owner)] = value
        self._owners.append(owner)  # an id is worth something as long as its object lives

    def of(self, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return the values that were noted, by the names that their owners have."""
        return {name: self._values[id(owner)] for name, owner in named if id(owner) in self._values}

    def of_module(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the values that were noted, as a module's state dict names them."""
        return self.of(module.state_dict(keep_vars=True).items())

    def linear(self, own: nn.Linear | nn.Conv2d, theirs: str, columns: Sequence[int] | None = None) -> None:
        """Translate a layer; column `j` of ours is their column `columns[j]`."""
        weight = self.find(f"{theirs}.weight", tuple(own.weight.shape))
        self.set(own.weight, weight if columns is None else weight[:, list(columns)])
        assert own.bias is not None
        self.set(own.bias, self.find(f"{theirs}.bias", tuple(own.bias.shape)))

    def rows(self, own: nn.Linear, theirs: Sequence[tuple[str, int]]) -> None:
        """Translate a layer that is several of theirs, each with so many outputs."""
        inputs = own.weight.shape[1]
        self.set(own.weight, torch.cat([self.find(f"{name}.weight", (rows, inputs)) for name, rows in theirs]))
        self.set(own.bias, torch.cat([self.find(f"{name}.bias", (rows,)) for name, rows in theirs]))


# Networks -------------------------------------------------------------------------------------------------------------


def _body(found: Translation, theirs: str, body: NetworkBody) -> None:
    _normalizer(found, f"{theirs}.observation_encoder", body.layout, body.normalizer)
    columns = _encoder(found, f"{theirs}.observation_encoder", body.layout, body.encoder)
    columns += range(len(columns), len(columns) + body.extra_inputs)
    if isinstance(body.hidden, ConditionalBody):
        _conditional(found, f"{theirs}._body_endoder.layers", body.hidden, columns)
    else:
        _dense(found, f"{theirs}._body_endoder.seq_layers", body.hidden, columns)
    if body.memory is not None:
        _memory(found, f"{theirs}.lstm.lstm", body.memory)


def _normalizer(found: Translation, theirs: str, layout: BodyLayout, normalizer: Normalizer | None) -> None:
    """Translate statistics; those of networks that see what the actor has normalised are only read."""
    if not layout.normalize:
        return
    means, squares, counts = [], [], []
    for index, size in zip(layout.of_kind(ObservationKind.VECTOR), layout.vector_sizes, strict=True):
        name = f"{theirs}.processors.{index}.normalizer"
        means.append(found.find(f"{name}.running_mean", (size,)).double())
        squares.append(found.find(f"{name}.running_variance", (size,)).double())
        counts.append(found.find(f"{name}.normalization_steps", ()).double())
    if normalizer is None:
        return
    count = torch.stack(counts).amax()  # all are equal, but for files of others' making
    found.set(normalizer.count, count)
    found.set(normalizer.mean, torch.cat(means))
    found.set(normalizer.squares, torch.cat([part * (count / own) for part, own in zip(squares, counts, strict=True)]))


def _encoder(found: Translation, theirs: str, layout: BodyLayout, encoder: ObservationEncoder) -> list[int]:
    """Translate the encoders of observations; return where each column of our encoding lies in theirs."""
    visuals, entities = layout.of_kind(ObservationKind.VISUAL), layout.of_kind(ObservationKind.ENTITIES)
    for index, visual in zip(visuals, encoder.visuals, strict=True):
        assert isinstance(visual, VisualEncoder)
        _visual(found, f"{theirs}.processors.{index}", layout.visual_encoder, visual)
    columns = _columns(layout)
    if encoder.attention is None:
        return columns
    if encoder.own_embedding is not None:
        found.linear(encoder.own_embedding, f"{theirs}.x_self_encoder.seq_layers.0", columns)
    for index, embedding in zip(entities, encoder.embeddings, strict=True):
        found.linear(_layer(embedding, "dense"), f"{theirs}.processors.{index}.self_ent_encoder.seq_layers.0")
    _attention(found, f"{theirs}.rsa", encoder.attention)
    return [*columns, *range(len(columns), encoder.size)]


def _columns(layout: BodyLayout) -> list[int]:
    """Return where each column of our encoding of vectors and pictures lies in theirs."""
    theirs: dict[int, range] = {}
    start = 0
    for index, kind in enumerate(layout.kinds):
        if kind is not ObservationKind.ENTITIES:
            width = layout.observations[index].size if kind is ObservationKind.VECTOR else layout.hidden_units
            theirs[index] = range(start, start + width)
            start += width
    ours = (*layout.of_kind(ObservationKind.VECTOR), *layout.of_kind(ObservationKind.VISUAL))
    return [column for index in ours for column in theirs[index]]


def _visual(found: Translation, theirs: str, encoder: str, visual: VisualEncoder) -> None:
    resnet = encoder == "resnet"
    layers = f"{theirs}.{'sequential' if resnet else 'conv_layers'}"
    for index, layer in enumerate(visual.layers):
        if isinstance(layer, nn.Conv2d):
            found.linear(layer, f"{layers}.{index}")
        elif isinstance(layer, ResidualBlock):
            found.linear(layer.first, f"{layers}.{index}.layers.1")
            found.linear(layer.second, f"{layers}.{index}.layers.3")
    found.linear(visual.dense, f"{theirs}.{'dense' if resnet else 'dense.0'}")


def _attention(found: Translation, theirs: str, attention: nn.Module) -> None:
    for own, name in (("query", "fc_q"), ("key", "fc_k"), ("value", "fc_v"), ("out", "fc_out")):
        found.linear(_layer(attention, own), f"{theirs}.{name}")


def _dense(found: Translation, theirs: str, hidden: DenseBody, columns: Sequence[int] | None = None) -> None:
    """Translate hidden layers; between two of them theirs count an activation."""
    for index, layer in enumerate(hidden.layers):
        assert isinstance(layer, nn.Linear)
        found.linear(layer, f"{theirs}.{2 * index}", columns if index == 0 else None)


def _conditional(found: Translation, theirs: str, hidden: ConditionalBody, columns: Sequence[int]) -> None:
    _dense(found, theirs, hidden.before, columns)
    last = f"{theirs}.{2 * len(hidden.before.layers)}"
    _dense(found, f"{last}.hypernet", hidden.hyper)
    name = f"{last}.hypernet.{2 * HYPER_LAYERS + 1}"  # behind the norm
    if len(hidden.before.layers):
        found.linear(hidden.weights, name)
    else:  # a row for each weight of a layer that sees the encoding itself
        rows = (torch.tensor(columns).unsqueeze(1) * hidden.units + torch.arange(hidden.units)).flatten()
        found.set(hidden.weights.weight, found.find(f"{name}.weight", tuple(hidden.weights.weight.shape))[rows])
        found.set(hidden.weights.bias, found.find(f"{name}.bias", tuple(hidden.weights.bias.shape))[rows])
    found.set(hidden.bias, found.find(f"{last}.bias", tuple(hidden.bias.shape)))


def _memory(found: Translation, theirs: str, memory: Memory) -> None:
    for own, name in (
        (memory.input_weight, "weight_ih_l0"),
        (memory.hidden_weight, "weight_hh_l0"),
        (memory.input_bias, "bias_ih_l0"),
        (memory.hidden_bias, "bias_hh_l0"),
    ):
        found.set(own, found.find(f"{theirs}.{name}", tuple(own.shape)))


def fill_actor(found: Translation, actor: Actor) -> None:
    """Translate a policy."""
    layout, model = actor.layout, f"{POLICY}/action_model"
    _body(found, f"{POLICY}/network_body", actor.body)
    gaussian = f"{model}._continuous_distribution"
    heads = [(f"{gaussian}.mu", layout.continuous_size)] if layout.continuous_size else []
    if layout.squashed and layout.continuous_size:
        heads.append((f"{gaussian}.log_sigma", layout.continuous_size))
    heads += [
        (f"{model}._discrete_distribution.branches.{index}", size)
        for index, size in enumerate(layout.discrete_branches)
    ]
    found.rows(actor.head, heads)
    if layout.continuous_size and not layout.squashed:
        found.set(actor.log_sigma, found.find(f"{gaussian}.log_sigma", (1, layout.continuous_size))[0])


def _heads(found: Translation, theirs: str, heads: nn.Linear, signals: Sequence[str], outputs: int = 1) -> None:
    found.rows(heads, [(f"{theirs}value_heads.value_heads.{signal}", outputs) for signal in signals])


def fill_actor_critic(found: Translation, model: ActorCritic, signals: Sequence[str]) -> None:
    """Translate the policy and the values of PPO, separate or with one body."""
    fill_actor(found, model.actor)
    if model.critic.body is None:
        _heads(found, f"{POLICY}/", model.critic.heads, signals)
    else:
        _body(found, f"{CRITIC}/network_body", model.critic.body)
        _heads(found, f"{CRITIC}/", model.critic.heads, signals)


def fill_team_critic(found: Translation, critic: TeamCritic, layout: BodyLayout, signals: Sequence[str]) -> None:
    """Translate POCA's critic; `layout` is that of the policy's body."""
    body = f"{CRITIC}/network_body"
    _normalizer(found, f"{body}.observation_encoder", layout, None)
    columns = _encoder(found, f"{body}.observation_encoder", layout, critic.encoder)
    for own, name in ((critic.seeing, "obs_encoder"), (critic.acting, "obs_action_encoder")):
        embedding = own.dense
        extra = range(len(columns), embedding.weight.shape[1])
        found.linear(embedding, f"{body}.{name}.self_ent_encoder.seq_layers.0", [*columns, *extra])
    _attention(found, f"{body}.self_attn", critic.attention)
    _dense(found, f"{body}.linear_encoder.seq_layers", critic.hidden)
    if critic.memory is not None:
        _memory(found, f"{body}.lstm.lstm", critic.memory)
    found.set(critic.largest, found.find(f"{body}._current_max_agents", ()))
    _heads(found, f"{CRITIC}/", critic.heads, signals)


def fill_modular_critics(found: Translation, critics: ModularCritics, signals: Sequence[str], choices: int) -> None:
    """Translate Q1, Q2, V and the target of SAC; a Q network has `choices` outputs for each signal."""
    named = [*zip(critics.q, (f"{name}." for name in Q), strict=True)]
    named += [(critics.v, f"{VALUE}/"), (critics.target, f"{TARGET}/")]
    for network, theirs in named:
        body = network.get_submodule("body")
        assert isinstance(body, NetworkBody)
        _body(found, f"{theirs}network_body", body)
        _heads(found, theirs, _layer(network, "heads"), signals, choices if theirs.startswith(Q) else 1)


def fill_stacked_critics(
    found: Translation, critics: StackedCritics, layout: BodyLayout, signals: Sequence[str], choices: int
) -> None:
    """Translate Q1, Q2 and V, on top of each other and transposed, and the target."""
    stack = [_single(found, f"{name}.", critics, layout, signals, choices) for name in Q]
    stack.append(_single(found, f"{VALUE}/", critics, layout, signals, choices))
    for index, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
        found.set(weight, torch.stack([layers[index][0] for layers in stack]))
        found.set(bias, torch.stack([layers[index][1] for layers in stack]))
    target = _single(found, f"{TARGET}/", critics, layout, signals, choices)
    values = [*(weight for weight, _ in target), *(bias for _, bias in target)]
    for own, value in zip(critics.target, values, strict=True):
        found.set(own, value)


def _single(
    found: Translation, theirs: str, critics: StackedCritics, layout: BodyLayout, signals: Sequence[str], choices: int
) -> list[tuple[Tensor, Tensor]]:
    """Return weights (inputs, outputs) and biases (1, outputs) of one network, layer by layer, as wide as the stack.

    A value network has neither inputs for actions nor several outputs for a signal: what the stack has there is 0.
    """
    judges_actions = theirs.startswith(Q)
    _normalizer(found, f"{theirs}network_body.observation_encoder", layout, None)
    layers = []
    *hidden, last = critics.weights
    for index, own in enumerate(hidden):
        name = f"{theirs}network_body._body_endoder.seq_layers.{2 * index}"
        _, inputs, units = own.shape
        seen = inputs if index or judges_actions else layout.vector_size
        weight = own.new_zeros(inputs, units)
        weight[:seen] = found.find(f"{name}.weight", (units, seen)).t()
        layers.append((weight, found.find(f"{name}.bias", (units,)).unsqueeze(0)))
    _, inputs, outputs = last.shape
    weight, bias, own_choices = last.new_zeros(inputs, outputs), last.new_zeros(1, outputs), choices
    if not judges_actions:
        own_choices = 1
    for index, signal in enumerate(signals):
        name, columns = (
            f"{theirs}value_heads.value_heads.{signal}",
            slice(index * choices, index * choices + own_choices),
        )
        weight[:, columns] = found.find(f"{name}.weight", (own_choices, inputs)).t()
        bias[0, columns] = found.find(f"{name}.bias", (own_choices,))
    return [*layers, (weight, bias)]


def fill_curiosity(found: Translation, networks: CuriosityNetworks, spec: BehaviorSpec) -> None:
    """Translate features and both models of curiosity."""
    theirs = "Module:Curiosity"
    _body(found, f"{theirs}/_state_encoder", networks.features)
    found.linear(networks.inverse.hidden, f"{theirs}/inverse_model_action_encoding.0.seq_layers.0")
    predictions = {
        f"{theirs}/continuous_action_prediction": spec.actions.continuous_size,
        f"{theirs}/discrete_action_prediction": sum(spec.actions.discrete_branches),
    }
    found.rows(networks.inverse.output, [(name, size) for name, size in predictions.items() if size])
    found.linear(networks.forward_model.hidden, f"{theirs}/forward_model_next_state_prediction.0.seq_layers.0")
    found.linear(networks.forward_model.output, f"{theirs}/forward_model_next_state_prediction.1")


def fill_rnd(found: Translation, networks: RNDNetworks) -> None:
    """Translate both networks of RND; the statistics are the target's."""
    _body(found, "Module:RND-target/_encoder", networks.target)
    _body(found, "Module:RND-pred/_encoder", networks.predictor)


def fill_gail(found: Translation, network: Discriminator) -> None:
    """Translate GAIL's discriminator, with VAIL's bottleneck where it has one."""
    theirs = "Module:GAIL"
    _body(found, f"{theirs}/encoder", network.body)
    if network.bottleneck is not None:
        found.linear(network.bottleneck, f"{theirs}/_z_mu_layer")
        found.set(network.sigma, found.find(f"{theirs}/_z_sigma", tuple(network.sigma.shape)))
        found.set(network.beta, found.find(f"{theirs}/_beta", ()))
    found.linear(network.unit, f"{theirs}/_estimator.0")


def _layer(module: nn.Module, name: str) -> nn.Linear:
    layer = module.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
