"""Value networks: one value for each reward signal, from a body of their own or from the actor's."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import torch
from jaxtyping import Float
from torch import Tensor, nn

from worker.networks.dense import DenseBody, xavier_dense
from worker.networks.layout import ActorLayout


class Critic(nn.Module):
    """Values of encoded observations, `S` signals. With `shared` it has heads only and gets the actor's features."""

    def __init__(self, layout: ActorLayout, signals: int, *, shared: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.body = None if shared else DenseBody(layout, generator)
        self.heads = xavier_dense(layout.hidden_units, signals, generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B S"]:
        """Return the values of encoded observations or, with a shared body, of the actor's features."""
        values: Tensor = self.heads(inputs if self.body is None else self.body(inputs))
        return values
