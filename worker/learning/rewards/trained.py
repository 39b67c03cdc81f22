"""The base of the reward signals that learn: a network with its optimizer, and large batches piece by piece."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ludus.config.network import NetworkSettings
from worker.experience.transitions import Transitions
from worker.learning.data_parallel import Shard
from worker.learning.fast.adam import FlatAdam
from worker.learning.rewards.signal import RewardSignal


def without_memory(settings: NetworkSettings) -> NetworkSettings:
    """Return a signal's network settings: signals judge single steps, a memory would have nothing to remember."""
    return settings.model_copy(update={"memory": None})


def pieces(transitions: Transitions, rows: int) -> Iterator[Transitions]:
    """Cut many steps into pieces of so many rows."""
    if len(transitions.index) <= rows:
        yield transitions
        return
    for which in torch.split(torch.arange(len(transitions.index), device=transitions.index.device), rows):
        yield transitions.select(which)


def observed(transitions: Transitions, rows: Int[Tensor, " B"]) -> list[Tensor]:
    """Return raw observations of some rows of the pool."""
    return [column.index_select(0, rows) for column in transitions.observations]


class TrainedSignal(RewardSignal):
    """A signal whose network learns by Adam. The learning rate does not change (ML-Agents)."""

    learns = True

    def __init__(self, network: nn.Module, learning_rate: float) -> None:
        self._module, self._learning_rate = network, learning_rate
        self._optimizer = FlatAdam(network.named_parameters())
        self.changed = [self._optimizer, *network.buffers()]

    def descend(self, loss: Float[Tensor, ""], part: Shard) -> None:
        """Take one step down the gradient of a loss that has a graph; it is the mean over this process's part."""
        self._optimizer.zero_gradient()
        torch.autograd.backward([loss * part.weight], inputs=self._optimizer.parameters)
        self._optimizer.step(self._learning_rate)

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return whether all weights and moments are finite."""
        return self._optimizer.all_finite()

    def state_dict(self) -> dict[str, Any]:
        """Return network and optimizer. Tensors are copies."""
        return {
            "model": {name: tensor.clone() for name, tensor in self._module.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
