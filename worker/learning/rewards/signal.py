"""The bases of reward signals: a signal rewards each step, and may learn from the same steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ludus.config.network import NetworkSettings
from worker.experience.state import State
from worker.experience.transitions import Transitions
from worker.learning.algorithms.training_state import Changed, Stored, load_states, states_of
from worker.learning.fast.adam import FlatAdam

N = TypeVar("N", bound=nn.Module)


class RewardSignal(ABC):
    """One source of reward. By default it learns nothing."""

    ignores_termination = False
    """Whether its returns go on where an episode terminated: then dying cannot stop a penalty, nor end a reward."""
    learns = False
    """Whether `update` does anything."""
    stored: Mapping[str, Stored] = {}
    """Everything that its next rewards and updates depend on."""
    changed: Sequence[Changed] = ()
    """The parts that `update` changes."""

    @abstractmethod
    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return the reward of each step, before the signal's strength. It changes nothing and keeps no graph."""

    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:  # noqa: ARG002  (learns nothing)
        """Learn from some steps by one gradient step; return measurements, on the device, by metric name."""
        return {}

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return whether all its weights are finite, as a tensor on the device."""
        return torch.tensor(True)

    def state_dict(self) -> State:
        """Return the state of what is `stored`."""
        return states_of(self.stored)

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken."""
        load_states(self.stored, state)


class TrainedSignal(RewardSignal, Generic[N]):
    """A signal whose network learns by Adam. The learning rate does not change (ML-Agents)."""

    learns = True

    def __init__(self, network: N, learning_rate: float) -> None:
        self.network, self.learning_rate = network, learning_rate
        self.optimizer = FlatAdam(network.named_parameters())
        self.stored = {"model": network, "optimizer": self.optimizer}
        self.changed = [self.optimizer, *network.buffers()]

    def descend(self, loss: Float[Tensor, ""]) -> None:
        """Take one step down the gradient of a loss that has a graph."""
        self.optimizer.zero_gradient()
        torch.autograd.backward([loss], inputs=self.optimizer.parameters)
        self.optimizer.step(self.learning_rate)

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return whether all weights and moments are finite."""
        return self.optimizer.all_finite()


def without_memory(settings: NetworkSettings) -> NetworkSettings:
    """Return a signal's network settings: signals judge single steps, a memory would have nothing to remember."""
    return settings.model_copy(update={"memory": None})


def pieces(transitions: Transitions, rows: int) -> Iterator[Transitions]:
    """Cut many steps into pieces of so many rows."""
    if transitions.steps <= rows:
        yield transitions
        return
    for which in torch.split(torch.arange(transitions.steps, device=transitions.index.device), rows):
        yield transitions.select(which)


def observed(transitions: Transitions, rows: Int[Tensor, " B"]) -> list[Tensor]:
    """Return raw observations of some rows of the pool."""
    return [column.index_select(0, rows) for column in transitions.observations]
