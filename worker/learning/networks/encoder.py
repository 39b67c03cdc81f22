"""From observations to one vector for each row: vectors as they are, pictures and entities through their encoders.

`Encoded` is what an encoder reads of a batch of `R` rows, and what learners keep between passes over it:

    all vector observations joined, in the spec's order, and normalised: (R, O) float32     only if there are any
    each visual observation as it was stored: (R, C, H, W) uint8 or float32
    each observation of variable length: (R, E, F) float32

Further parts may lie behind these, which an encoder leaves alone: what only the critic sees (`networks.privileged`).

The result is the vectors, the features of each picture, and 128 numbers from attention over all entities, side by
side. ML-Agents mixes vectors and pictures in the spec's order: only the columns differ.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor, nn

from ludus.collector.layout import BodyLayout
from ludus.collector.spec_checks import ObservationKind
from worker.learning.networks.attention import (
    EMBEDDING_SIZE,
    EntityEmbedding,
    ResidualSelfAttention,
    entity_deviation,
    padding_of,
)
from worker.learning.networks.dense import Dense, normal_dense
from worker.learning.networks.visual import VisualEncoder

Encoded = list[Tensor]
"""The inputs of an encoder for a batch of rows; see above."""


class ObservationEncoder(nn.Module):
    """The encoders of a behavior's observations. Without pictures and entities it has no weights."""

    own_embedding: Dense | None
    attention: ResidualSelfAttention | None

    def __init__(self, layout: BodyLayout, generator: torch.Generator) -> None:
        super().__init__()
        self._layout = layout
        visuals, entities = (layout.of_kind(kind) for kind in (ObservationKind.VISUAL, ObservationKind.ENTITIES))
        self._visuals = [
            VisualEncoder(layout.visual_encoder, layout.observations[index].shape, layout.hidden_units, generator)
            for index in visuals
        ]
        self.visuals = nn.ModuleList(self._visuals)
        own_size = layout.vector_size + layout.hidden_units * len(visuals)
        self.own_embedding = None
        if entities and own_size:
            self.own_embedding = normal_dense(own_size, EMBEDDING_SIZE, entity_deviation(EMBEDDING_SIZE), generator)
        embedded = EMBEDDING_SIZE if own_size else 0
        self._embeddings = [
            EntityEmbedding(layout.observations[index].shape[1], embedded, EMBEDDING_SIZE, generator)
            for index in entities
        ]
        self.embeddings = nn.ModuleList(self._embeddings)
        self.attention = ResidualSelfAttention(EMBEDDING_SIZE, generator) if entities else None
        self.size = own_size + (EMBEDDING_SIZE if entities else 0)
        """Width of the result."""
        columns = _columns(layout)
        self.goal_columns = [columns[index] for index in range(len(layout.kinds)) if layout.is_goal(index)]
        """Where the goals' encodings lie in the result: from, to."""
        self.goal_size = sum(stop - start for start, stop in self.goal_columns)

    @property
    def widest(self) -> int:
        """Elements of the largest layer's output for one row, about."""
        counts = [self._layout.observations[index].shape[0] for index in self._layout.of_kind(ObservationKind.ENTITIES)]
        entities = sum(counts)
        attended = entities * EMBEDDING_SIZE * 3 + 4 * entities * entities
        return max([self.size, attended, *(encoder.widest for encoder in self._visuals)])

    def forward(self, encoded: Encoded) -> Float[Tensor, "R I"]:
        """Return one vector for each row."""
        if not self._visuals and self.attention is None:
            return encoded[0]
        first = 1 if self._layout.of_kind(ObservationKind.VECTOR) else 0
        pictures = encoded[first : first + len(self._visuals)]
        parts = encoded[:first] + [visual(item) for visual, item in zip(self._visuals, pictures, strict=True)]
        if self.attention is not None:
            agent = F.silu(self.own_embedding(torch.cat(parts, 1))) if self.own_embedding is not None else None
            start = first + len(self._visuals)
            entities = encoded[start : start + len(self._embeddings)]
            embedded = [embedding(item, agent) for embedding, item in zip(self._embeddings, entities, strict=True)]
            padding = [padding_of(item) for item in entities]
            parts.append(self.attention(torch.cat(embedded, 1), torch.cat(padding, 1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def goal(self, encoding: Float[Tensor, "R I"]) -> Float[Tensor, "R K"]:
        """Return the goals' columns of a result."""
        return torch.cat([encoding[:, start:stop] for start, stop in self.goal_columns], 1)


def _columns(layout: BodyLayout) -> dict[int, tuple[int, int]]:
    """Return where the encoding of each vector and visual observation lies, by the observation's index."""
    columns, start = {}, 0
    for kind in (ObservationKind.VECTOR, ObservationKind.VISUAL):
        for index in layout.of_kind(kind):
            size = layout.observations[index].size if kind is ObservationKind.VECTOR else layout.hidden_units
            columns[index] = (start, start + size)
            start += size
    return columns
