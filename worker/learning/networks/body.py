"""The body of every network, ML-Agents' `NetworkBody`: encoders, hidden layers, and a memory where one is wished.

    observations --encode--> Encoded --encoders--> vector [+ extra inputs] --hidden layers--> [LSTM] --> features

Hidden layers are ordinary ones, those of `networks.normed` or, where an observation is a goal signal and
`goal_conditioning_type` is `hyper`, those of `networks.conditional`. `encode` normalises and joins the vectors; nothing
learns there, so learners encode a rollout once. Pictures go through it untouched.

Dimensions: `R` rows; with a memory they are `Q` sequences of `L` steps each, one sequence after the other.
"""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.collector.spec_checks import ObservationKind
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ObservationSpec
from worker.learning.networks.conditional import ConditionalBody
from worker.learning.networks.dense import DenseBody
from worker.learning.networks.encoder import Encoded, ObservationEncoder
from worker.learning.networks.memory import Memory
from worker.learning.networks.normalizer import Normalizer
from worker.learning.networks.normed import LayerNormBody, SimbaBody, hidden_body


class ObservationInputs(nn.Module):
    """The inputs of a network: its part of the observations, with their running statistics where these are its own."""

    normalizer: Normalizer | None

    def __init__(self, layout: BodyLayout, *, normalizes: bool = True) -> None:
        super().__init__()
        self.layout = layout
        self.normalizer = Normalizer(layout.vector_size) if layout.normalize and normalizes else None

    @torch.no_grad()
    def encode(self, observations: list[Tensor]) -> Encoded:
        """Return the network's part of raw observations in the spec's order: joined and normalised vectors first."""
        vectors = self._joined(observations)
        encoded = [] if vectors is None else [vectors if self.normalizer is None else self.normalizer(vectors)]
        indices = (*self.layout.of_kind(ObservationKind.VISUAL), *self.layout.of_kind(ObservationKind.ENTITIES))
        return encoded + [observations[index] for index in indices]

    @torch.no_grad()
    def update_normalizer(self, observations: list[Tensor], statistics: Normalizer | None = None) -> None:
        """Add raw observations to the running statistics, if there are any, or to other `statistics` instead."""
        statistics = statistics or self.normalizer
        if statistics is not None:
            vectors = self._joined(observations)
            assert vectors is not None
            statistics.merge(vectors)

    def _joined(self, observations: list[Tensor]) -> Float[Tensor, "R O"] | None:
        vectors = [observations[index] for index in self.layout.of_kind(ObservationKind.VECTOR)]
        if len(vectors) <= 1:
            return vectors[0] if vectors else None
        return torch.cat(vectors, 1)


class NetworkBody(ObservationInputs):
    """Features of observations."""

    hidden: DenseBody | LayerNormBody | SimbaBody | ConditionalBody
    memory: Memory | None

    def __init__(
        self,
        observations: Sequence[ObservationSpec],
        settings: NetworkSettings,
        generator: torch.Generator,
        *,
        unseen: Collection[int] = (),
        extra_inputs: int = 0,
        normalizes: bool = True,
    ) -> None:
        """Raise `UnsupportedSpec` for observations that no network reads.

        `unseen` are the indices of observations that it does not see. `extra_inputs` is the width of what `forward`
        gets beside the observations. `normalizes` is false where another body encodes (a critic gets what its actor
        encoded).
        """
        layout = BodyLayout.of(observations, settings, unseen=unseen)
        super().__init__(layout, normalizes=normalizes)
        self.features = layout.features
        """Width of what `forward` returns."""
        self.memory_size = layout.memory_size
        """Width of the state `[h | c]`; 0 without memory."""
        self.extra_inputs = extra_inputs
        self.encoder = ObservationEncoder(layout, generator)
        inputs, units, layers = self.encoder.size + extra_inputs, layout.hidden_units, layout.num_layers
        self.hidden = (
            ConditionalBody(inputs, self.encoder.goal_size, units, layers, generator, activation=layout.activation)
            if layout.conditioned
            else hidden_body(inputs, layout, generator)
        )
        self.memory = Memory(units, layout.memory_size, generator) if layout.memory_size else None

    def forward(
        self,
        encoded: Encoded,
        memory: Float[Tensor, "Q S"] | None = None,
        *,
        length: int = 1,
        extra: Float[Tensor, "R X"] | None = None,
    ) -> tuple[Float[Tensor, "R U"], Float[Tensor, "Q S"] | None]:
        """Return the features of each row, and the memory after each sequence (None without one).

        Rows are sequences of `length`, one after the other. `memory` is the state before each; None is all zeros.
        """
        return self.features_of(self.encoder(encoded), memory, length, extra)

    def features_of(
        self,
        encoding: Float[Tensor, "R I"],
        memory: Float[Tensor, "Q S"] | None,
        length: int,
        extra: Float[Tensor, "R X"] | None = None,
    ) -> tuple[Float[Tensor, "R U"], Float[Tensor, "Q S"] | None]:
        """Return as `forward`, for observations that have gone through the encoders."""
        inputs = encoding if extra is None else torch.cat([encoding, extra], 1)
        if isinstance(self.hidden, ConditionalBody):
            features = self.hidden(inputs, self.encoder.goal(encoding))
        else:
            features = self.hidden(inputs)
        if self.memory is None:
            return features, None
        features, state = self.memory(features, memory, length)
        return features, state

    @property
    def dense(self) -> DenseBody:
        """The hidden layers of a plain body, which are all of it."""
        assert isinstance(self.hidden, DenseBody)
        return self.hidden

    @property
    def rows_at_once(self) -> int:
        """Rows of a forward pass without derivatives whose layers take about 64 MB: more would not run faster."""
        widest = max(self.encoder.widest, 4 * self.layout.hidden_units)
        if isinstance(self.hidden, ConditionalBody):
            widest = max(widest, self.hidden.last_inputs * self.hidden.units)
        return min(max(2**24 // widest, 1), 4096)
