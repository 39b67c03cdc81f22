"""Which networks a behavior gets, and how the actor's weights lie in one flat vector. Needs no torch.

`BodyLayout` is the shape of a network body, from a spec's observations and `network_settings`; `ActorLayout` adds the
actions.
A spec that no network handles is refused here, before anything is built.

A layout is *plain* where every observation is a float32 vector, without memory and without a hypernetwork: learners
then have derivatives by hand (`worker.learning.networks.dense`), and collectors act without torch
(`ludus.collector.policy`). The flat vector of a plain actor follows `ActorLayout.sections`, so neither side knows more
about the other than this:

    normalizer mean (O), normalizer standard deviation (O)      only with `normalize`
    for each hidden layer: weight (out, in), bias (out)
    head weight (H, hidden), head bias (H)                      outputs for continuous columns, then for choices
    parameters of the head, as log_sigma (C)                    see `ludus.collector.heads`

For all others both sides build the same torch modules, and the order is that of their parameters
(`worker.learning.networks.actor`).

How an observation is treated, as in ML-Agents: rank 1 is a vector; rank 3 a picture (channels, height, width); rank 2
with the properties (VARIABLE_SIZE, NONE) a table of up to so many entities. Any other is refused.

Dimensions: `O` elements of all vector observations together, `C` continuous columns, `M` choices of all branches,
`H` columns of the head: `C + M`, or `2 C + M` where deviations are columns, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from ludus.collector.heads import HEADS
from ludus.collector.heads.head import Head
from ludus.collector.heads.squashed import Squashed
from ludus.protocol.spec import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

MINIMUM_SIZES: Mapping[str, int] = {"fully_connected": 1, "match3": 5, "resnet": 15, "simple": 20, "nature_cnn": 36}
"""Visual encoders (`network_settings.vis_encode_type`), and the least height and width of a picture for each."""


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
        goals = [index for index, observation in enumerate(observations) if _is_goal(observation)] if hyper else []
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


@dataclass(frozen=True, slots=True)
class ActorLayout:
    """The shape of an actor: everything that is needed to build one and, if it is plain, to read its flat weights."""

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
        """Whether collectors act without torch, and `sections` describes the flat vector."""
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

    def sections(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of each part of a plain actor's flat vector, in order."""
        assert self.plain, "the flat vector of other actors is described by their modules"
        body = self.body
        if body.normalize:
            yield "normalizer.mean", (body.vector_size,)
            yield "normalizer.std", (body.vector_size,)
        width = body.vector_size
        for layer in range(body.num_layers):
            yield f"body.{layer}.weight", (body.hidden_units, width)
            yield f"body.{layer}.bias", (body.hidden_units,)
            width = body.hidden_units
        yield "head.weight", (self.head_size, width)
        yield "head.bias", (self.head_size,)
        for parameter in self.kind.parameters(self.continuous_size):
            yield parameter.name, (parameter.size,)

    @property
    def flat_size(self) -> int:
        """Number of float32 values in a plain actor's flat vector."""
        return sum(prod(shape) for _, shape in self.sections())


def _is_goal(observation: ObservationSpec) -> bool:
    return observation.type is ObservationType.GOAL_SIGNAL


def _name(index: int, observation: ObservationSpec) -> str:
    return f"observation {index}" + (f" ({observation.name!r})" if observation.name else "")


def _kind_of(behavior: str, index: int, observation: ObservationSpec) -> ObservationKind:
    """Return how a network reads an observation; refuse one that none reads."""
    what, shape, properties = _name(index, observation), observation.shape, observation.dimension_properties
    if observation.size < 1:
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
        message += f"a height and width of at least {minimum}; choose another vis_encode_type or send larger pictures"
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
