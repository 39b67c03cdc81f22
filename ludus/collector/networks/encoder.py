"""From observations to one vector for each row: vectors, the features of each picture, and attention over entities."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray
from ludus.collector.layout import BodyLayout
from ludus.collector.networks.attention import EntityEmbedding, ResidualSelfAttention, padding_of
from ludus.collector.networks.dense import Dense, Sections, swish
from ludus.collector.networks.normalizer import joined_vectors
from ludus.collector.networks.visual import VisualEncoder
from ludus.collector.spec_checks import ObservationKind

T = TypeVar("T", bound=np.generic)


class ObservationEncoder:
    """The encoders of a behavior's observations."""

    def __init__(self, layout: BodyLayout, sections: Sections, name: str) -> None:
        self._vectors, self._visuals, self._entities = (layout.of_kind(kind) for kind in ObservationKind)
        self._mean, self._std = sections.get("normalizer.mean"), sections.get("normalizer.std")
        self._pictures = [
            VisualEncoder(
                layout.visual_encoder,
                layout.picture_shape(index),
                sections,
                f"{name}.visuals.{place}",
                of_bytes=layout.observations[index].dtype == "uint8",
            )
            for place, index in enumerate(self._visuals)
        ]
        embeds_itself = bool(self._entities and layout.encoded_size)
        self._own_embedding = Dense.of(sections, f"{name}.own_embedding") if embeds_itself else None
        self._embeddings = [
            EntityEmbedding(sections, f"{name}.embeddings.{place}.dense", layout.observations[index].shape[1])
            for place, index in enumerate(self._entities)
        ]
        self._attention = ResidualSelfAttention(sections, f"{name}.attention") if self._entities else None

    def __call__(self, observations: Sequence[NDArray[np.generic]]) -> FloatArray:
        """Return `(B, I)` of observations in the spec's order. It may be an observation itself."""
        parts: list[FloatArray] = []
        if self._vectors:
            parts.append(joined_vectors([observations[index] for index in self._vectors], self._mean, self._std))
        parts += [encode(observations[index]) for encode, index in zip(self._pictures, self._visuals, strict=True)]
        if self._attention is not None:
            own = None if self._own_embedding is None else swish(self._own_embedding(_side_by_side(parts)))
            entities = [observations[index].astype(np.float32, copy=False) for index in self._entities]
            embedded = [embed(each, own) for embed, each in zip(self._embeddings, entities, strict=True)]
            padding = [padding_of(each) for each in entities]
            parts.append(self._attention(_side_by_side(embedded), _side_by_side(padding)))
        return _side_by_side(parts)


def _side_by_side(parts: Sequence[NDArray[T]]) -> NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
