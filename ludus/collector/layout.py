"""Which networks a behavior gets, and how the actor's weights lie in one flat vector. Needs no torch.

`BodyLayout` is the shape of a network body, from a spec's observations and `network_settings`; `ActorLayout` adds the
actions.
A spec that no network handles is refused here, before anything is built.

The flat vector of an actor follows `ActorLayout.sections`, so collectors, which act in numpy, and the learner, which
has torch modules (`worker.learning.networks.actor`), know no more about each other than this:

    normalizer mean (O), normalizer standard deviation (O)      only with `normalize`
    encoders: each picture's, then those of entities            only with pictures or entities
    hidden layers: weight (out, in), bias (out) of each         with goals also those of the hypernetwork
    LSTM: weights (4 U, in), (4 U, U), two biases (4 U)         only with memory
    head weight (H, features), head bias (H)                    outputs for continuous columns, then for choices
    parameters of the head, as log_sigma (C)                    see `ludus.collector.heads`

Names and order are those of the torch modules' parameters.

A layout is *plain* where every observation is a float32 vector, without memory and without a hypernetwork: learners
then have derivatives by hand (`worker.learning.networks.dense`), and collectors a shorter way
(`ludus.collector.policy`).

How an observation is treated, as in ML-Agents: rank 1 is a vector; rank 3 a picture (channels, height, width); rank 2
with the properties (VARIABLE_SIZE, NONE) a table of up to so many entities. Any other is refused. A vector, and each
entity, may have no numbers: they are inputs all the same, so that the others keep their places.

Dimensions: `O` elements of all vector observations together, `C` continuous columns, `M` choices of all branches,
`H` columns of the head: `C + M`, or `2 C + M` where deviations are columns, too; `U` width of the LSTM's output.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import prod
from typing import Any

from ludus.collector.heads import HEADS
from ludus.collector.heads.head import Head
from ludus.collector.heads.squashed import Squashed
from ludus.collector.networks.convolutions import MINIMUM_SIZES, Shape, kernels, output_shape
from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

EMBEDDING_SIZE = 128
"""Width of the embedding of entities, and of what attention makes of them."""
HYPER_LAYERS = 2
"""Hidden layers of a hypernetwork."""
Section = tuple[str, tuple[int, ...]]
"""A part of a flat vector: its name and shape."""


class UnsupportedSpec(ValueError):
    """There is no network for the spec of a behavior. `code` is stable, the message has the remedy."""

    def __init__(self, behavior: str, code: str, message: str) -> None:
        super().__init__(f"behavior {behavior!r}: {message}" if behavior else message)
        self.behavior = behavior
        self.code = code


class ObservationKind(Enum):
    """How a network reads an observation."""

    VECTOR = "vector"
    """(size,): joined with the other vectors, and normalised if asked."""
    VISUAL = "visual"
    """(channels, height, width): an encoder of its own; uint8 is scaled to [0, 1]."""
    ENTITIES = "entities"
    """(entities, size): rows in any order, those of zeros only are padding; attention."""


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
    normalize: bool
    """Whether vectors are normalised; false where there are none."""
    visual_encoder: str
    memory_size: int
    """Width of the recurrent state `[h | c]`; 0 without memory."""
    conditioned: bool
    """Whether a hypernetwork makes the last hidden layer from the goal signals."""

    @classmethod
    def of(
        cls, observations: Sequence[ObservationSpec], network_settings: Mapping[str, Any], behavior: str = ""
    ) -> "BodyLayout":
        """Derive the shape from observations and stored `network_settings`; raise `UnsupportedSpec` with the reason."""
        if not observations:
            raise UnsupportedSpec(behavior, "observations_missing", "announce at least one observation")
        kinds = tuple(_kind_of(behavior, index, observation) for index, observation in enumerate(observations))
        encoder = str(network_settings.get("vis_encode_type", "simple"))
        for index, (observation, kind) in enumerate(zip(observations, kinds, strict=True)):
            if kind is ObservationKind.VISUAL:
                _check_resolution(behavior, index, observation, encoder)
        hyper = network_settings.get("goal_conditioning_type", "hyper") == "hyper"
        goals = [index for index, goal in enumerate(observations) if hyper and _is_goal(goal)]
        for index in goals:
            if kinds[index] is ObservationKind.ENTITIES:
                message = f"{_name(index, observations[index])} is a goal signal of variable length: a hypernetwork "
                message += "takes vectors and pictures only (or set goal_conditioning_type: none)"
                raise UnsupportedSpec(behavior, "goal_signal_unsupported", message)
        return cls(
            observations=tuple(observations),
            kinds=kinds,
            hidden_units=int(network_settings.get("hidden_units", 128)),
            num_layers=max(int(network_settings.get("num_layers", 2)), 1),
            activation=str(network_settings.get("activation", "swish")),
            normalize=bool(network_settings.get("normalize", False)) and ObservationKind.VECTOR in kinds,
            visual_encoder=encoder,
            memory_size=_memory_size(behavior, network_settings),
            conditioned=bool(goals),
        )

    def of_kind(self, kind: ObservationKind) -> tuple[int, ...]:
        """Return the indices of the observations of a kind, in the spec's order."""
        return tuple(index for index, own in enumerate(self.kinds) if own is kind)

    @property
    def vector_sizes(self) -> tuple[int, ...]:
        """Elements of each vector observation."""
        return tuple(self.observations[index].size for index in self.of_kind(ObservationKind.VECTOR))

    @property
    def vector_size(self) -> int:
        """`O`."""
        return sum(self.vector_sizes)

    @property
    def plain(self) -> bool:
        """Whether there are float32 vectors only, no memory and no hypernetwork."""
        return {*self.kinds} == {ObservationKind.VECTOR} and not self.memory_size and not self.conditioned

    @property
    def features(self) -> int:
        """Width of the output of the body: half of the memory if there is one, else the hidden units."""
        return self.memory_size // 2 if self.memory_size else self.hidden_units

    def is_goal(self, index: int) -> bool:
        """Return whether an observation is a goal that conditions the network."""
        return self.conditioned and _is_goal(self.observations[index])

    @property
    def encoded_size(self) -> int:
        """Width of what the encoders make of observations, where entities are left out."""
        return self.vector_size + self.hidden_units * len(self.of_kind(ObservationKind.VISUAL))

    @property
    def input_size(self) -> int:
        """Width of what the hidden layers get."""
        return self.encoded_size + (EMBEDDING_SIZE if ObservationKind.ENTITIES in self.kinds else 0)

    def goal_columns(self) -> list[tuple[int, int]]:
        """Return where the encodings of goals lie in what the hidden layers get: from, to."""
        columns, start = {}, 0
        for kind in (ObservationKind.VECTOR, ObservationKind.VISUAL):
            for index in self.of_kind(kind):
                size = self.observations[index].size if kind is ObservationKind.VECTOR else self.hidden_units
                columns[index] = (start, start + size)
                start += size
        return [columns[index] for index in range(len(self.kinds)) if self.is_goal(index)]

    @property
    def goal_size(self) -> int:
        """Width of all goals' encodings."""
        return sum(stop - start for start, stop in self.goal_columns())

    def picture_shape(self, index: int) -> Shape:
        """Return the channels, height and width of a visual observation."""
        channels, height, width = self.observations[index].shape
        return channels, height, width

    def sections(self) -> Iterator[Section]:
        """Yield the name and shape of each part of the flat vector, in order, without the normalizer's."""
        yield from self._encoder_sections()
        units, inputs = self.hidden_units, self.input_size
        if not self.conditioned:
            yield from _dense_sections("hidden", [inputs, *[units] * self.num_layers])
        else:
            yield "hidden.bias", (units,)
            yield from _dense_sections("hidden.before", [inputs, *[units] * (self.num_layers - 1)])
            yield from _dense_sections("hidden.hyper", [self.goal_size, *[units] * HYPER_LAYERS])
            yield from _linear("hidden.weights", units, units * (units if self.num_layers > 1 else inputs))
        if self.memory_size:
            gates = 4 * self.features
            yield "memory.input_weight", (gates, units)
            yield "memory.hidden_weight", (gates, self.features)
            yield "memory.input_bias", (gates,)
            yield "memory.hidden_bias", (gates,)

    def _encoder_sections(self) -> Iterator[Section]:
        for place, index in enumerate(self.of_kind(ObservationKind.VISUAL)):
            name, shape = f"encoder.visuals.{place}", self.picture_shape(index)
            yield from _linear(f"{name}.dense", prod(output_shape(self.visual_encoder, shape)), self.hidden_units)
            for layer, kernel in kernels(self.visual_encoder, shape[0]):
                yield f"{name}.layers.{layer}.weight", kernel
                yield f"{name}.layers.{layer}.bias", kernel[:1]
        entities = self.of_kind(ObservationKind.ENTITIES)
        embedded = 0
        if entities and self.encoded_size:
            yield from _linear("encoder.own_embedding", self.encoded_size, EMBEDDING_SIZE)
            embedded = EMBEDDING_SIZE
        for place, index in enumerate(entities):
            inputs = embedded + self.observations[index].shape[1]
            yield from _linear(f"encoder.embeddings.{place}.dense", inputs, EMBEDDING_SIZE)
        for layer in ("query", "key", "value", "out") if entities else ():
            yield from _linear(f"encoder.attention.{layer}", EMBEDDING_SIZE, EMBEDDING_SIZE)


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
    def of(cls, spec: BehaviorSpec, network_settings: Mapping[str, Any], *, head: str = "gaussian") -> "ActorLayout":
        """Derive the shape from a spec and stored `network_settings`; raise `UnsupportedSpec` with the reason."""
        body = BodyLayout.of(spec.observations, network_settings, spec.name)
        branches = spec.actions.discrete_branches
        if spec.actions.continuous_size < 0 or any(branch < 1 for branch in branches):
            raise UnsupportedSpec(spec.name, "actions_invalid", "every discrete branch needs at least one choice")
        if spec.actions.continuous_size + len(branches) == 0:
            message = "announce at least one continuous action or one discrete branch"
            raise UnsupportedSpec(spec.name, "actions_missing", message)
        if spec.actions.continuous_size and HEADS[head].continuous is None:
            message = "this trainer learns discrete actions only; announce branches, or take another trainer_type"
            raise UnsupportedSpec(spec.name, "actions_continuous", message)
        deterministic = bool(network_settings.get("deterministic", False))
        return cls(body, spec.actions.continuous_size, branches, deterministic, head)

    @property
    def kind(self) -> Head:
        """The description of the head."""
        return HEADS[self.head]

    @property
    def squashed(self) -> bool:
        """Whether samples of continuous actions pass through tanh."""
        return isinstance(self.kind.continuous, Squashed)

    @property
    def plain(self) -> bool:
        """Whether there are float32 vectors only, no memory and no hypernetwork."""
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
        """Yield the name and shape of each part of the flat vector, in order."""
        if self.body.normalize:
            yield "normalizer.mean", (self.body.vector_size,)
            yield "normalizer.std", (self.body.vector_size,)
        yield from ((f"body.{name}", shape) for name, shape in self.body.sections())
        yield from _linear("head", self.body.features, self.head_size)
        for parameter in self.kind.parameters(self.continuous_size):
            yield parameter.name, (parameter.size,)

    @property
    def flat_size(self) -> int:
        """Number of float32 values in the flat vector."""
        return sum(prod(shape) for _, shape in self.sections())


def _linear(name: str, inputs: int, outputs: int) -> Iterator[Section]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _dense_sections(name: str, widths: Sequence[int]) -> Iterator[Section]:
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        yield from _linear(f"{name}.layers.{place}", inputs, outputs)


def _is_goal(observation: ObservationSpec) -> bool:
    return observation.type is ObservationType.GOAL_SIGNAL and observation.size > 0


def _name(index: int, observation: ObservationSpec) -> str:
    return f"observation {index}" + (f" ({observation.name!r})" if observation.name else "")


def _kind_of(behavior: str, index: int, observation: ObservationSpec) -> ObservationKind:
    """Return how a network reads an observation; refuse one that none reads."""
    what, shape, properties = _name(index, observation), observation.shape, observation.dimension_properties
    if 0 in shape[:-1] or (not observation.size and len(shape) > 2):
        raise UnsupportedSpec(behavior, "observation_empty", f"{what} has no elements: its shape is {shape}")
    variable = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    if len(shape) == 2 and properties == variable:
        kind = ObservationKind.ENTITIES
    elif DimensionProperty.VARIABLE_SIZE in properties or len(shape) not in {1, 3}:
        message = f"{what} has shape {shape} and dimension properties {tuple(item.name for item in properties)}; "
        message += "a network reads vectors (one dimension), pictures (channels, height, width) and tables of entities "
        message += "(two dimensions with the properties VARIABLE_SIZE and NONE)"
        raise UnsupportedSpec(behavior, "observation_shape_unsupported", message)
    elif len(shape) == 1:
        kind = ObservationKind.VECTOR
    elif properties[-1:] == (DimensionProperty.NONE,) and properties[0] is not DimensionProperty.NONE:
        message = f"{what} has shape {shape} with the channels last; announce (channels, height, width)"
        raise UnsupportedSpec(behavior, "observation_shape_unsupported", message)
    else:
        kind = ObservationKind.VISUAL
    if kind is not ObservationKind.VISUAL and observation.dtype != "float32":
        message = f"{what} is {observation.dtype}; only pictures may be, announce float32"
        raise UnsupportedSpec(behavior, "observation_dtype_unsupported", message)
    return kind


def _check_resolution(behavior: str, index: int, observation: ObservationSpec, encoder: str) -> None:
    """Refuse a picture that is smaller than an encoder's convolutions need."""
    minimum = MINIMUM_SIZES[encoder]
    _, height, width = observation.shape
    if min(height, width) < minimum:
        message = (
            f"{_name(index, observation)} has shape {observation.shape}, but the visual encoder {encoder!r} needs "
        )
        fitting = [name for name, least in MINIMUM_SIZES.items() if least <= min(height, width)]
        message += f"a height and width of at least {minimum}; set vis_encode_type: {fitting[-1]}"
        message += f" (or {', '.join(fitting[:-1])})" if fitting[1:] else ""
        message += ", which fits, or send larger pictures"
        raise UnsupportedSpec(behavior, "observation_too_small", message)


def _memory_size(behavior: str, network_settings: Mapping[str, Any]) -> int:
    memory = network_settings.get("memory")
    if memory is None:
        return 0
    size = int(memory.get("memory_size", 128))
    if size < 2 or size % 2:
        message = f"network_settings.memory.memory_size is {size}; it must be even, at least 2: it holds two states"
        raise UnsupportedSpec(behavior, "memory_size_odd", message)
    return size
