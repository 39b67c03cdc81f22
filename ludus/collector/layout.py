"""Which networks a behavior gets, and how the weights of an actor in numpy lie in one flat vector. Needs no torch.

`BodyLayout` is the shape of a network body, from a spec's observations and the network's settings; `ActorLayout` adds
the actions. Specs that no network handles are refused (`ludus.collector.spec_checks`).

A layout is *dense* where every observation is a float32 vector and no hypernetwork is needed: collectors act in numpy
then (`ludus.collector.policy`). It is *plain* if it has neither memory nor layer norms: learners then have derivatives
by hand (`worker.learning.fast`). The flat vector of a dense actor follows `ActorLayout.sections`:

    normalizer mean (O), normalizer standard deviation (O)      only with `normalize`
    hidden layers: weight (out, in), bias (out) of each           others with layer norms: `BodyLayout.hidden_sections`
    LSTM: weights (4 U, in), (4 U, U), two biases (4 U)         only with memory
    head weight (H, features), head bias (H)                    outputs for continuous columns, then for choices
    parameters of the head, as log_sigma (C)                    see `ludus.collector.heads`

Names and order are those of the parameters of the learner's modules (`worker.learning.networks.actor`). Other actors
have more parts between the normalizer and the head; the graph that they act with says where these lie.

Dimensions: `O` elements of all vector observations together, `C` continuous columns, `M` choices of all branches,
`H` columns of the head: `C + M`, or `2 C + M` where deviations are columns, too; `U` width of the LSTM's output.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

from ludus.collector.activations import FloatArray
from ludus.collector.heads import Head, Squashed, head_of
from ludus.collector.spec_checks import ObservationKind, UnsupportedSpec, check_actions, check_observations, is_goal
from ludus.config.encoder import EncoderConfig
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec, ObservationSpec

NORMALIZED_LIMIT = 5.0
"""Normalised vectors are clipped to `[-NORMALIZED_LIMIT, NORMALIZED_LIMIT]`, as in ML-Agents."""
NORM_EPSILON = 1e-5
"""Added to the variance in layer norms."""
EXPANSION = 4
"""Width of the hidden layer of a residual block, in widths of the block."""
Section = tuple[str, tuple[int, ...]]
"""A part of a flat vector: its name and shape."""


@dataclass(frozen=True, slots=True)
class NetworkGraph:
    """A network that is not dense, as ONNX Runtime takes it: from observations, and a memory, to the head's columns."""

    WEIGHTS: ClassVar[str] = "weights"
    """The file in which the model's external data lies: the flat vector."""
    model: str
    """Without weights, in base64: it travels in a message."""
    weights_size: int
    """Number of float32 values in the flat vector."""


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """The shape of a network body: everything that is needed to build one."""

    observations: tuple[ObservationSpec, ...]
    kinds: tuple[ObservationKind, ...]
    """Of each observation."""
    hidden_units: int
    num_layers: int
    """Hidden layers; at least one is built (ML-Agents' `LinearEncoder`)."""
    activation: str
    """Of the hidden layers (`ludus.collector.activations`)."""
    hidden_type: str
    """The form of the hidden layers: `network_settings.hidden_type`."""
    normalize: bool
    """Whether vectors are normalised; false where there are none."""
    visual_encoder: str | EncoderConfig
    """The name of one of Ludus, or the configuration of one of a plug-in."""
    memory_size: int
    """Width of the recurrent state `[h | c]`; 0 without memory."""
    conditioned: bool
    """Whether a hypernetwork makes the last hidden layer from the goal signals."""

    @classmethod
    def of(
        cls,
        observations: Sequence[ObservationSpec],
        settings: NetworkSettings,
        behavior: str = "",
        *,
        unseen: Collection[int] = (),
    ) -> "BodyLayout":
        """Derive the shape from observations and settings; raise `UnsupportedSpec` with the reason.

        `unseen` are the indices of observations that are no inputs of this network: they keep their places in a batch.
        """
        hyper = settings.goal_conditioning_type == "hyper"
        encoder, name = settings.encoder, settings.vis_encode_type
        size = 1 if encoder is None else encoder.minimum_size
        kinds = check_observations(observations, behavior, name, hyper=hyper, minimum_size=size)
        kinds = tuple(ObservationKind.UNSEEN if index in unseen else kind for index, kind in enumerate(kinds))
        conditioned = hyper and any(is_goal(part) for index, part in enumerate(observations) if index not in unseen)
        if conditioned and settings.hidden_type != "dense":
            message = f"goals make the weights of its hidden layers, which hidden_type {settings.hidden_type} does not "
            message += "support; set network_settings.goal_conditioning_type: none, or hidden_type: dense"
            raise UnsupportedSpec(behavior, "hidden_type_unsupported", message)
        return cls(
            observations=tuple(observations),
            kinds=kinds,
            hidden_units=settings.hidden_units,
            num_layers=max(settings.num_layers, 1),
            activation=settings.activation,
            hidden_type=settings.hidden_type,
            normalize=settings.normalize and ObservationKind.VECTOR in kinds,
            visual_encoder=name if encoder is None else encoder,
            memory_size=0 if settings.memory is None else settings.memory.memory_size,
            conditioned=conditioned,
        )

    def of_kind(self, kind: ObservationKind) -> tuple[int, ...]:
        """Return the indices of the observations of a kind, in the spec's order."""
        return tuple(index for index, observed in enumerate(self.kinds) if observed is kind)

    @property
    def seen(self) -> tuple[int, ...]:
        """Indices of the observations that are inputs of this network, in the spec's order."""
        return tuple(index for index, kind in enumerate(self.kinds) if kind is not ObservationKind.UNSEEN)

    @property
    def vector_sizes(self) -> tuple[int, ...]:
        """Elements of each vector observation."""
        return tuple(self.observations[index].size for index in self.of_kind(ObservationKind.VECTOR))

    @property
    def vector_size(self) -> int:
        """`O`."""
        return sum(self.vector_sizes)

    @property
    def dense(self) -> bool:
        """Whether there are float32 vectors only, and no hypernetwork."""
        return {*self.kinds} - {ObservationKind.UNSEEN} == {ObservationKind.VECTOR} and not self.conditioned

    @property
    def plain(self) -> bool:
        """Whether there are float32 vectors only, no memory, no hypernetwork and no layer norms."""
        return self.dense and not self.memory_size and self.hidden_type == "dense"

    @property
    def features(self) -> int:
        """Width of the output of the body: half of the memory if there is one, else the hidden units."""
        return self.memory_size // 2 if self.memory_size else self.hidden_units

    def hidden_sections(self) -> Iterator[Section]:
        """Yield the name and shape of each part of the hidden layers of a dense actor, in order."""
        units, layers = self.hidden_units, range(self.num_layers)
        if self.hidden_type == "simba":
            yield from _linear("body.hidden.embedding", self.vector_size, units)
            for block in layers:
                yield from _norm(f"body.hidden.blocks.{block}.norm", units)
                yield from _linear(f"body.hidden.blocks.{block}.widening", units, EXPANSION * units)
                yield from _linear(f"body.hidden.blocks.{block}.narrowing", EXPANSION * units, units)
            yield from _norm("body.hidden.norm", units)
            return
        for layer, widths in enumerate(pairwise([self.vector_size, *[units] * self.num_layers])):
            yield from _linear(f"body.hidden.layers.{layer}", *widths)
        if self.hidden_type == "layer_norm":
            for layer in layers:
                yield from _norm(f"body.hidden.norms.{layer}", units)

    def is_goal(self, index: int) -> bool:
        """Return whether an observation is a goal that conditions the network."""
        seen = self.kinds[index] is not ObservationKind.UNSEEN
        return self.conditioned and seen and is_goal(self.observations[index])


@dataclass(frozen=True, slots=True)
class ActorLayout:
    """The shape of an actor: everything that is needed to build one and to read its flat weights."""

    body: BodyLayout
    continuous_size: int
    discrete_branches: tuple[int, ...]
    deterministic: bool
    """Act with the mean and the most likely choice instead of sampling."""
    head: str = "gaussian"
    """How the columns of the last layer become actions: a key of `ludus.collector.heads.HEADS`."""

    @classmethod
    def of(cls, spec: BehaviorSpec, settings: NetworkSettings, *, head: str = "gaussian") -> "ActorLayout":
        """Derive the shape from a spec and settings; raise `UnsupportedSpec` with the reason."""
        body = BodyLayout.of(spec.observations, settings, spec.name, unseen=privileged_observations(spec, settings))
        check_actions(spec, head)
        return cls(body, spec.actions.continuous_size, spec.actions.discrete_branches, settings.deterministic, head)

    @property
    def kind(self) -> Head:
        """The description of the head."""
        return head_of(self.head)

    @property
    def squashed(self) -> bool:
        """Whether samples of continuous actions pass through tanh."""
        return isinstance(self.kind.continuous, Squashed)

    @property
    def dense(self) -> bool:
        """Whether there are float32 vectors only, and no hypernetwork."""
        return self.body.dense

    @property
    def plain(self) -> bool:
        """Whether there are float32 vectors only, no memory, no hypernetwork and no layer norms."""
        return self.body.plain

    @property
    def memory_size(self) -> int:
        """Width of the recurrent state; 0 without."""
        return self.body.memory_size

    @property
    def logits_start(self) -> int:
        """The first of the head's columns that belong to choices; before it are those of continuous actions."""
        continuous = self.kind.continuous
        return 0 if continuous is None else self.continuous_size * continuous.outputs

    @property
    def head_size(self) -> int:
        """`H`, the columns of the actor's head."""
        return self.logits_start + sum(self.discrete_branches)

    def sections(self) -> Iterator[Section]:
        """Yield the name and shape of each part of the flat vector of a dense actor, in order."""
        body = self.body
        if body.normalize:
            yield "normalizer.mean", (body.vector_size,)
            yield "normalizer.std", (body.vector_size,)
        yield from body.hidden_sections()
        if body.memory_size:
            gates = 4 * body.features
            yield "body.memory.input_weight", (gates, body.hidden_units)
            yield "body.memory.hidden_weight", (gates, body.features)
            yield "body.memory.input_bias", (gates,)
            yield "body.memory.hidden_bias", (gates,)
        yield from _linear("head", body.features, self.head_size)
        yield from self.head_sections()

    def head_sections(self) -> Iterator[Section]:
        """Yield the parts behind the head's bias, which are the last ones of every actor's flat vector."""
        for parameter in self.kind.parameters(self.continuous_size):
            yield parameter.name, (parameter.size,)

    @property
    def flat_size(self) -> int:
        """Number of float32 values in the flat vector of a dense actor."""
        return sum(prod(shape) for _, shape in self.sections())


def privileged_observations(spec: BehaviorSpec, settings: NetworkSettings) -> tuple[int, ...]:
    """Return the indices of the observations that only the critic of a behavior sees.

    Raise `UnsupportedSpec` if the settings name one that the game does not announce, or leave none for the policy.
    """
    key, names = "network_settings.privileged_observations", [observation.name for observation in spec.observations]
    announced = ", ".join(repr(name) for name in names if name) or "no observation that has a name"
    unknown = [repr(name) for name in settings.privileged_observations if name not in names]
    if unknown:
        message = f"{key} names {', '.join(unknown)}; the game announces {announced}. Correct the names, here or there"
        raise UnsupportedSpec(spec.name, "privileged_observation_unknown", message)
    if names and {*names} <= {*settings.privileged_observations}:
        message = f"{key} names all observations ({announced}), and leaves none for the policy; remove some of them"
        raise UnsupportedSpec(spec.name, "privileged_observations_all", message)
    return tuple(index for index, name in enumerate(names) if name in settings.privileged_observations)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[Section]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _norm(name: str, size: int) -> Iterator[Section]:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def split(sections: Iterable[Section], flat: FloatArray) -> dict[str, FloatArray]:
    """Return the parts of a flat vector, `(n,)`, by name; views of it.

    Of `P` flat vectors, `(P, n)`, each part has a first dimension of `P`.
    """
    parts, start = dict[str, FloatArray](), 0
    for name, shape in sections:
        parts[name] = flat[..., start : start + prod(shape)].reshape(*flat.shape[:-1], *shape)
        start += prod(shape)
    return parts
