"""Which networks a behavior gets, and how the actor's weights lie in one flat vector. Needs no torch.

`BodyLayout` is the shape of a network body, from a spec's observations and the network's settings; `ActorLayout` adds
the actions. Specs that no network handles are refused (`ludus.collector.spec_checks`).


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

Dimensions: `O` elements of all vector observations together, `C` continuous columns, `M` choices of all branches,
`H` columns of the head: `C + M`, or `2 C + M` where deviations are columns, too; `U` width of the LSTM's output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ludus.collector.heads import HEADS
from ludus.collector.heads.head import Head
from ludus.collector.heads.squashed import Squashed
from ludus.collector.networks.convolutions import Shape, kernels, output_shape
from ludus.collector.spec_checks import ObservationKind, check_actions, check_observations, is_goal
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec, ObservationSpec

EMBEDDING_SIZE = 128
"""Width of the embedding of entities, and of what attention makes of them."""
HYPER_LAYERS = 2
"""Hidden layers of a hypernetwork."""
Section = tuple[str, tuple[int, ...]]
"""A part of a flat vector: its name and shape."""


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
    def of(cls, observations: Sequence[ObservationSpec], settings: NetworkSettings, behavior: str = "") -> "BodyLayout":
        """Derive the shape from observations and settings; raise `UnsupportedSpec` with the reason."""
        hyper = settings.goal_conditioning_type == "hyper"
        kinds = check_observations(observations, behavior, settings.vis_encode_type, hyper=hyper)
        return cls(
            observations=tuple(observations),
            kinds=kinds,
            hidden_units=settings.hidden_units,
            num_layers=max(settings.num_layers, 1),
            activation=settings.activation,
            normalize=settings.normalize and ObservationKind.VECTOR in kinds,
            visual_encoder=settings.vis_encode_type,
            memory_size=0 if settings.memory is None else settings.memory.memory_size,
            conditioned=hyper and any(map(is_goal, observations)),
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
        return self.conditioned and is_goal(self.observations[index])

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
    def of(cls, spec: BehaviorSpec, settings: NetworkSettings, *, head: str = "gaussian") -> "ActorLayout":
        """Derive the shape from a spec and settings; raise `UnsupportedSpec` with the reason."""
        body = BodyLayout.of(spec.observations, settings, spec.name)
        check_actions(spec, head)
        return cls(body, spec.actions.continuous_size, spec.actions.discrete_branches, settings.deterministic, head)

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
