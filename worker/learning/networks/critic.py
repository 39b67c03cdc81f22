"""Value networks: one value for each reward signal, from a body of their own or from the actor's."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worker.learning.networks.body import NetworkBody
from worker.learning.networks.dense import xavier_dense
from worker.learning.networks.encoder import Encoded


class Critic(nn.Module):
    """Values of encoded observations, `S` signals. With `shared` the body is another's, and only the heads are here."""

    def __init__(self, body: NetworkBody, signals: int, generator: torch.Generator, *, shared: bool = False) -> None:
        super().__init__()
        self.body = None if shared else body
        self.heads = xavier_dense(body.features, signals, generator)

    def forward(
        self, encoded: Encoded, memory: Float[Tensor, "Q K"] | None = None, *, length: int = 1
    ) -> tuple[Float[Tensor, "R S"], Float[Tensor, "Q K"] | None]:
        """Return the values of each row, and the memory after each sequence. Only for one with a body of its own."""
        assert self.body is not None
        features, memory = self.body(encoded, memory, length=length)
        values: Tensor = self.heads(features)
        return values, memory
