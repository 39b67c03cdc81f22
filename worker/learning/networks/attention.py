"""Observations of variable length: entities in any order, some of them padding (Baker et al. 2019; ML-Agents).

Each entity is embedded together with what the agent knows of itself; all entities attend to each other; the mean over
the real ones is the result. Neither the order nor the number of padding rows changes it.

Deviation from ML-Agents, on purpose: an entity is padding where it is *all zeros*, which is what Unity's BufferSensor
pads with. ML-Agents takes every entity for padding whose sum of squares is below 0.01, so that a real one with small
numbers vanishes.

As in ML-Agents: scores are divided by the root of the embedding's width, not of a head's; layer norms have no
parameters; weights start from `N(0, 0.125 / width)`.

Dimensions: `R` rows, `E` entities, `F` numbers of an entity, `A` width of the embedding.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ludus.collector.layout import NORM_EPSILON
from worker.learning.networks.dense import normal_dense

EMBEDDING_SIZE = 128
HEADS = 4
PADDING_SCORE = -1e6
"""The attention score of padding: its weight is exactly 0 beside any real entity."""
NO_NUMBER = 1e-30
"""Below this sum of absolute values an entity is padding (a comparison with 0 that exported models can make, too)."""
EPSILON = 1e-7
"""Added to the number of real entities: the mean of none is 0."""


def entity_deviation(width: int) -> float:
    """Return the deviation of initial weights in embeddings and attention."""
    return math.sqrt(0.125 / width)


def padding_of(entities: Float[Tensor, "R E F"]) -> Bool[Tensor, "R E"]:
    """Return which entities are padding."""
    return entities.abs().sum(2) < NO_NUMBER


class EntityEmbedding(nn.Module):
    """One hidden layer over `[self, entity]` for each entity; `self_size` 0 leaves the agent itself out."""

    def __init__(self, entity_size: int, self_size: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.self_size = self_size
        self.dense = normal_dense(self_size + entity_size, width, entity_deviation(width), generator)

    def forward(self, entities: Float[Tensor, "R E F"], own: Float[Tensor, "R K"] | None) -> Float[Tensor, "R E A"]:
        """Return the embedding of each entity. `own` is what the agent knows of itself, None without."""
        weight, bias = self.dense.weight, self.dense.bias
        if own is None:
            return F.silu(F.linear(entities, weight, bias))
        # W [self, entity] = W_self self + W_entity entity: the agent's part once, not once for each entity
        shared = F.linear(own, weight[:, : self.self_size], bias)
        return F.silu(F.linear(entities, weight[:, self.self_size :]) + shared.unsqueeze(1))


class ResidualSelfAttention(nn.Module):
    """Norm, attention with four heads, residual, norm, mean over the real entities."""

    def __init__(self, width: int, generator: torch.Generator, heads: int = HEADS) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"attention over {width} units needs a multiple of its {heads} heads")
        self.width, self.heads = width, heads
        deviation = entity_deviation(width)
        self.query, self.key, self.value, self.out = (
            normal_dense(width, width, deviation, generator) for _ in range(4)
        )

    def forward(self, entities: Float[Tensor, "R E A"], padding: Bool[Tensor, "R E"]) -> Float[Tensor, "R A"]:
        """Return the mean of what the real entities make of each other; 0 where there are none."""
        normed = F.layer_norm(entities, (self.width,), eps=NORM_EPSILON)
        query, key, value = (self._heads(layer(normed)) for layer in (self.query, self.key, self.value))
        # Written out: torch's fused attention has no second derivative, which a gradient penalty (GAIL) needs.
        scores = query @ key.transpose(2, 3) / math.sqrt(self.width)  # (R, heads, E, E)
        weights = scores.masked_fill(padding[:, None, None, :], PADDING_SCORE).softmax(3)
        attended = (weights @ value).transpose(1, 2).flatten(2)  # (R, E, A)
        result = F.layer_norm(self.out(attended) + normed, (self.width,), eps=NORM_EPSILON)
        real = (~padding).to(result.dtype)
        return torch.sum(result * real.unsqueeze(2), 1) / (real.sum(1, keepdim=True) + EPSILON)

    def _heads(self, entities: Float[Tensor, "R E A"]) -> Float[Tensor, "R heads E head"]:
        rows, count, _ = entities.shape
        return entities.view(rows, count, self.heads, self.width // self.heads).transpose(1, 2)
