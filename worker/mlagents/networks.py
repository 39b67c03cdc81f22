"""Which tensors of ML-Agents make our networks: one method for each of them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.collector.spec_checks import ObservationKind
from ludus.protocol.spec import BehaviorSpec
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.actor import Actor
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.attention import EntityEmbedding, ResidualSelfAttention
from worker.learning.networks.body import NetworkBody
from worker.learning.networks.conditional import HYPER_LAYERS, ConditionalBody
from worker.learning.networks.dense import DenseBody
from worker.learning.networks.encoder import ObservationEncoder
from worker.learning.networks.memory import Memory
from worker.learning.networks.multi_agent import TeamCritic
from worker.learning.networks.normalizer import Normalizer
from worker.learning.networks.soft_actor_critic import ModularCritics
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
    """Values for our parameters and buffers, made of tensors that have ML-Agents' names.

    `prefix` is how the names of a network's tensors begin there, `signals` are the reward signals in the order of the
    value heads.
    """

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

    def same(self, owner: Tensor, name: str) -> None:
        """Translate a parameter or buffer that is a tensor of the file as it is."""
        self.set(owner, self.find(name, tuple(owner.shape)))

    def linear(self, layer: nn.Linear | nn.Conv2d, prefix: str, columns: Sequence[int] | None = None) -> None:
        """Translate a layer; column `j` of ours is their column `columns[j]`."""
        weight = self.find(f"{prefix}.weight", tuple(layer.weight.shape))
        self.set(layer.weight, weight if columns is None else weight[:, list(columns)])
        assert layer.bias is not None
        self.same(layer.bias, f"{prefix}.bias")

    def rows(self, layer: nn.Linear, parts: Sequence[tuple[str, int]]) -> None:
        """Translate a layer that is several of theirs, each with so many outputs."""
        inputs = layer.weight.shape[1]
        self.set(layer.weight, torch.cat([self.find(f"{name}.weight", (rows, inputs)) for name, rows in parts]))
        self.set(layer.bias, torch.cat([self.find(f"{name}.bias", (rows,)) for name, rows in parts]))

    def _body(self, prefix: str, body: NetworkBody) -> None:
        self._normalizer(f"{prefix}.observation_encoder", body.layout, body.normalizer)
        columns = self._encoder(f"{prefix}.observation_encoder", body.layout, body.encoder)
        columns += range(len(columns), len(columns) + body.extra_inputs)
        if isinstance(body.hidden, ConditionalBody):
            self._conditional(f"{prefix}._body_endoder.layers", body.hidden, columns)
        else:
            self._dense(f"{prefix}._body_endoder.seq_layers", body.dense, columns)
        if body.memory is not None:
            self._memory(f"{prefix}.lstm.lstm", body.memory)

    def _normalizer(self, prefix: str, layout: BodyLayout, normalizer: Normalizer | None) -> None:
        """Translate statistics; those of networks that see what the actor has normalised are only read."""
        if not layout.normalize:
            return
        means, squares, counts = [], [], []
        for index, size in zip(layout.of_kind(ObservationKind.VECTOR), layout.vector_sizes, strict=True):
            name = f"{prefix}.processors.{index}.normalizer"
            means.append(self.find(f"{name}.running_mean", (size,)).double())
            squares.append(self.find(f"{name}.running_variance", (size,)).double())
            counts.append(self.find(f"{name}.normalization_steps", ()).double())
        if normalizer is None:
            return
        count = torch.stack(counts).amax()  # all are equal, but for files of others' making
        self.set(normalizer.count, count)
        self.set(normalizer.mean, torch.cat(means))
        self.set(normalizer.squares, torch.cat([part * (count / n) for part, n in zip(squares, counts, strict=True)]))

    def _encoder(self, prefix: str, layout: BodyLayout, encoder: ObservationEncoder) -> list[int]:
        """Translate the encoders of observations; return where each column of our encoding lies in theirs."""
        visuals, entities = layout.of_kind(ObservationKind.VISUAL), layout.of_kind(ObservationKind.ENTITIES)
        for index, visual in zip(visuals, encoder.visuals, strict=True):
            assert isinstance(visual, VisualEncoder)
            processor, resnet = f"{prefix}.processors.{index}", layout.visual_encoder == "resnet"
            layers = f"{processor}.{'sequential' if resnet else 'conv_layers'}"
            for number, layer in enumerate(visual.layers):
                if isinstance(layer, nn.Conv2d):
                    self.linear(layer, f"{layers}.{number}")
                elif isinstance(layer, ResidualBlock):
                    self.linear(layer.first, f"{layers}.{number}.layers.1")
                    self.linear(layer.second, f"{layers}.{number}.layers.3")
            self.linear(visual.dense, f"{processor}.{'dense' if resnet else 'dense.0'}")
        columns = _columns(layout)
        if encoder.attention is None:
            return columns
        if encoder.own_embedding is not None:
            self.linear(encoder.own_embedding, f"{prefix}.x_self_encoder.seq_layers.0", columns)
        for index, embedding in zip(entities, encoder.embeddings, strict=True):
            assert isinstance(embedding, EntityEmbedding)
            self.linear(embedding.dense, f"{prefix}.processors.{index}.self_ent_encoder.seq_layers.0")
        self._attention(f"{prefix}.rsa", encoder.attention)
        return [*columns, *range(len(columns), encoder.size)]

    def _attention(self, prefix: str, attention: ResidualSelfAttention) -> None:
        self.linear(attention.query, f"{prefix}.fc_q")
        self.linear(attention.key, f"{prefix}.fc_k")
        self.linear(attention.value, f"{prefix}.fc_v")
        self.linear(attention.out, f"{prefix}.fc_out")

    def _dense(self, prefix: str, hidden: DenseBody, columns: Sequence[int] | None = None) -> None:
        """Translate hidden layers; between two of them theirs count an activation."""
        for index, layer in enumerate(hidden.layers):
            assert isinstance(layer, nn.Linear)
            self.linear(layer, f"{prefix}.{2 * index}", columns if index == 0 else None)

    def _conditional(self, prefix: str, hidden: ConditionalBody, columns: Sequence[int]) -> None:
        self._dense(prefix, hidden.before, columns)
        last = f"{prefix}.{2 * len(hidden.before.layers)}"
        self._dense(f"{last}.hypernet", hidden.hyper)
        name = f"{last}.hypernet.{2 * HYPER_LAYERS + 1}"  # behind the norm
        if len(hidden.before.layers):
            self.linear(hidden.weights, name)
        else:  # a row for each weight of a layer that sees the encoding itself
            rows = (torch.tensor(columns).unsqueeze(1) * hidden.units + torch.arange(hidden.units)).flatten()
            self.set(hidden.weights.weight, self.find(f"{name}.weight", tuple(hidden.weights.weight.shape))[rows])
            self.set(hidden.weights.bias, self.find(f"{name}.bias", tuple(hidden.weights.bias.shape))[rows])
        self.same(hidden.bias, f"{last}.bias")

    def _memory(self, prefix: str, memory: Memory) -> None:
        self.same(memory.input_weight, f"{prefix}.weight_ih_l0")
        self.same(memory.hidden_weight, f"{prefix}.weight_hh_l0")
        self.same(memory.input_bias, f"{prefix}.bias_ih_l0")
        self.same(memory.hidden_bias, f"{prefix}.bias_hh_l0")

    def actor(self, actor: Actor) -> None:
        """Translate a policy."""
        layout, model = actor.layout, f"{POLICY}/action_model"
        self._body(f"{POLICY}/network_body", actor.body)
        gaussian = f"{model}._continuous_distribution"
        heads = [(f"{gaussian}.mu", layout.continuous_size)] if layout.continuous_size else []
        if layout.squashed and layout.continuous_size:
            heads.append((f"{gaussian}.log_sigma", layout.continuous_size))
        branches = f"{model}._discrete_distribution.branches"
        heads += [(f"{branches}.{index}", size) for index, size in enumerate(layout.discrete_branches)]
        self.rows(actor.head, heads)
        if layout.continuous_size and not layout.squashed:
            self.set(actor.log_sigma, self.find(f"{gaussian}.log_sigma", (1, layout.continuous_size))[0])

    def _heads(self, prefix: str, heads: nn.Linear, signals: Sequence[str], outputs: int = 1) -> None:
        self.rows(heads, [(f"{prefix}value_heads.value_heads.{signal}", outputs) for signal in signals])

    def actor_critic(self, model: ActorCritic, signals: Sequence[str]) -> None:
        """Translate the policy and the values of PPO, separate or with one body."""
        self.actor(model.actor)
        if model.critic.body is None:
            self._heads(f"{POLICY}/", model.critic.heads, signals)
        else:
            self._body(f"{CRITIC}/network_body", model.critic.body)
            self._heads(f"{CRITIC}/", model.critic.heads, signals)

    def team_critic(self, critic: TeamCritic, layout: BodyLayout, signals: Sequence[str]) -> None:
        """Translate POCA's critic; `layout` is that of the policy's body."""
        body = f"{CRITIC}/network_body"
        self._normalizer(f"{body}.observation_encoder", layout, None)
        columns = self._encoder(f"{body}.observation_encoder", layout, critic.encoder)
        for embedding, name in ((critic.seeing, "obs_encoder"), (critic.acting, "obs_action_encoder")):
            extra = range(len(columns), embedding.dense.weight.shape[1])
            self.linear(embedding.dense, f"{body}.{name}.self_ent_encoder.seq_layers.0", [*columns, *extra])
        self._attention(f"{body}.self_attn", critic.attention)
        self._dense(f"{body}.linear_encoder.seq_layers", critic.hidden)
        if critic.memory is not None:
            self._memory(f"{body}.lstm.lstm", critic.memory)
        self.same(critic.largest, f"{body}._current_max_agents")
        self._heads(f"{CRITIC}/", critic.heads, signals)

    def modular_critics(self, critics: ModularCritics, signals: Sequence[str], choices: int) -> None:
        """Translate Q1, Q2, V and the target of SAC; a Q network has `choices` outputs for each signal."""
        prefixes = (*(f"{name}." for name in Q), f"{VALUE}/", f"{TARGET}/")
        for network, prefix in zip((*critics.q_networks, critics.v, critics.target), prefixes, strict=True):
            self._body(f"{prefix}network_body", network.body)
            self._heads(prefix, network.heads, signals, choices if prefix.startswith(Q) else 1)

    def stacked_critics(
        self, critics: StackedCritics, layout: BodyLayout, signals: Sequence[str], choices: int
    ) -> None:
        """Translate Q1, Q2 and V, on top of each other and transposed, and the target."""
        prefixes = (*(f"{name}." for name in Q), f"{VALUE}/", f"{TARGET}/")
        *stack, target = (self._single(prefix, critics, layout, signals, choices) for prefix in prefixes)
        for index, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            self.set(weight, torch.stack([layers[index][0] for layers in stack]))
            self.set(bias, torch.stack([layers[index][1] for layers in stack]))
        values = [*(weight for weight, _ in target), *(bias for _, bias in target)]
        for parameter, value in zip(critics.target, values, strict=True):
            self.set(parameter, value)

    def _single(
        self, prefix: str, critics: StackedCritics, layout: BodyLayout, signals: Sequence[str], choices: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Return weights (inputs, outputs) and biases (1, outputs) of one network by layer, as wide as the stack.

        A value network has neither inputs for actions nor several outputs for a signal: what the stack has there is 0.
        """
        judges_actions = prefix.startswith(Q)
        self._normalizer(f"{prefix}network_body.observation_encoder", layout, None)
        layers = []
        *hidden, last = critics.weights
        for index, stacked in enumerate(hidden):
            name = f"{prefix}network_body._body_endoder.seq_layers.{2 * index}"
            _, inputs, units = stacked.shape
            used = inputs if index or judges_actions else layout.vector_size
            weight = stacked.new_zeros(inputs, units)
            weight[:used] = self.find(f"{name}.weight", (units, used)).t()
            layers.append((weight, self.find(f"{name}.bias", (units,)).unsqueeze(0)))
        _, inputs, outputs = last.shape
        weight, bias = last.new_zeros(inputs, outputs), last.new_zeros(1, outputs)
        width = choices if judges_actions else 1
        for index, signal in enumerate(signals):
            name, columns = f"{prefix}value_heads.value_heads.{signal}", slice(index * choices, index * choices + width)
            weight[:, columns] = self.find(f"{name}.weight", (width, inputs)).t()
            bias[0, columns] = self.find(f"{name}.bias", (width,))
        return [*layers, (weight, bias)]

    def curiosity(self, networks: CuriosityNetworks, spec: BehaviorSpec) -> None:
        """Translate features and both models of curiosity."""
        prefix = "Module:Curiosity"
        self._body(f"{prefix}/_state_encoder", networks.features)
        self.linear(networks.inverse.hidden, f"{prefix}/inverse_model_action_encoding.0.seq_layers.0")
        predictions = {
            f"{prefix}/continuous_action_prediction": spec.actions.continuous_size,
            f"{prefix}/discrete_action_prediction": sum(spec.actions.discrete_branches),
        }
        self.rows(networks.inverse.output, [(name, size) for name, size in predictions.items() if size])
        self.linear(networks.forward_model.hidden, f"{prefix}/forward_model_next_state_prediction.0.seq_layers.0")
        self.linear(networks.forward_model.output, f"{prefix}/forward_model_next_state_prediction.1")

    def rnd(self, networks: RNDNetworks) -> None:
        """Translate both networks of RND; the statistics are the target's."""
        self._body("Module:RND-target/_encoder", networks.target)
        self._body("Module:RND-pred/_encoder", networks.predictor)

    def gail(self, network: Discriminator) -> None:
        """Translate GAIL's discriminator, with VAIL's bottleneck where it has one."""
        prefix = "Module:GAIL"
        self._body(f"{prefix}/encoder", network.body)
        if network.bottleneck is not None:
            self.linear(network.bottleneck, f"{prefix}/_z_mu_layer")
            self.same(network.sigma, f"{prefix}/_z_sigma")
            self.same(network.beta, f"{prefix}/_beta")
        self.linear(network.unit, f"{prefix}/_estimator.0")


def _columns(layout: BodyLayout) -> list[int]:
    """Return where each column of our encoding of vectors and pictures lies in theirs."""
    ranges: dict[int, range] = {}
    start = 0
    for index, kind in enumerate(layout.kinds):
        if kind is not ObservationKind.ENTITIES:
            width = layout.observations[index].size if kind is ObservationKind.VECTOR else layout.hidden_units
            ranges[index] = range(start, start + width)
            start += width
    ordered = (*layout.of_kind(ObservationKind.VECTOR), *layout.of_kind(ObservationKind.VISUAL))
    return [column for index in ordered for column in ranges[index]]
