"""Observations of variable length: entities in any order, some of them padding (`worker.learning.networks.attention`).

An entity is padding where it is all zeros. Dimensions: `B` rows, `E` entities, `F` numbers of an entity, `A` width of
the embedding.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray
from ludus.collector.networks.dense import Dense, Sections, layer_norm, swish

HEADS = 4
PADDING_SCORE = np.float32(-1e6)
"""The attention score of padding: its weight is exactly 0 beside any real entity."""
NO_NUMBER = np.float32(1e-30)
"""Below this sum of absolute values an entity is padding."""
EPSILON = np.float32(1e-7)
"""Added to the number of real entities: the mean of none is 0."""


def padding_of(entities: FloatArray) -> NDArray[np.bool_]:
    """Return which entities of `(B, E, F)` are padding, `(B, E)`."""
    padding: NDArray[np.bool_] = np.add.reduce(np.abs(entities), axis=2) < NO_NUMBER
    return padding


class EntityEmbedding:
    """One hidden layer over `[self, entity]` for each entity."""

    def __init__(self, sections: Sections, name: str, entity_size: int) -> None:
        weight, bias = sections[f"{name}.weight"], sections[f"{name}.bias"]
        own = weight.shape[1] - entity_size
        # W [self, entity] = W_self self + W_entity entity: the agent's part once, not once for each entity
        self._own = Dense(weight[:, :own], bias)
        self._entity = np.ascontiguousarray(weight[:, own:].T)

    def __call__(self, entities: FloatArray, own: FloatArray | None) -> FloatArray:
        """Return `(B, E, A)` of entities `(B, E, F)`. `own` `(B, K)`: what the agent knows of itself, or None."""
        rows, count, size = entities.shape
        embedded = (entities.reshape(rows * count, size) @ self._entity).reshape(rows, count, self._entity.shape[1])
        embedded += self._own.bias if own is None else self._own(own)[:, None]
        return swish(embedded)


class ResidualSelfAttention:
    """Norm, attention with four heads, residual, norm, mean over the real entities."""

    def __init__(self, sections: Sections, name: str) -> None:
        layers = [
            (sections[f"{name}.{part}.weight"], sections[f"{name}.{part}.bias"]) for part in ("query", "key", "value")
        ]
        width = len(layers[0][0])
        scale = np.float32(1.0 / math.sqrt(width))  # of the scores: once here, not for each of them
        layers[0] = (layers[0][0] * scale, layers[0][1] * scale)
        self._projections = Dense(*(np.concatenate(parts) for parts in zip(*layers, strict=True)))  # (A, 3 A)
        self._out = Dense.of(sections, f"{name}.out")

    def __call__(self, entities: FloatArray, padding: NDArray[np.bool_]) -> FloatArray:
        """Return the mean of what the real entities make of each other, `(B, A)`; 0 where there are none."""
        rows, count, width = entities.shape
        normed = layer_norm(entities).reshape(rows * count, width)
        projected = self._projections(normed).reshape(rows, count, 3, HEADS, width // HEADS)
        query, key, value = (projected[:, :, part].swapaxes(1, 2) for part in range(3))  # (B, heads, E, head)
        scores = query @ key.swapaxes(2, 3)  # (B, heads, E, E)
        if padding.any():
            np.copyto(scores, PADDING_SCORE, where=padding[:, None, None, :])
        scores -= np.maximum.reduce(scores, axis=3, keepdims=True)
        np.exp(scores, out=scores)
        scores /= np.add.reduce(scores, axis=3, keepdims=True)
        attended = np.empty((rows, count, HEADS, width // HEADS), np.float32)
        np.matmul(scores, value, out=attended.swapaxes(1, 2))
        result = self._out(attended.reshape(rows * count, width))
        result += normed
        result = layer_norm(result).reshape(rows, count, width)
        real = np.logical_not(padding).astype(np.float32)
        total: FloatArray = (real[:, None] @ result)[:, 0]
        total /= np.add.reduce(real, axis=1, keepdims=True) + EPSILON
        return total
