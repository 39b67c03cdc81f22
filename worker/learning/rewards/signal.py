"""The base of reward signals: a signal rewards each step, and may learn from the same steps."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from worker.experience.transitions import Transitions
from worker.learning.algorithms.training_state import Changed


class RewardSignal(ABC):
    """One source of reward. By default it learns nothing."""

    ignores_termination = False
    """Whether its returns go on where an episode terminated: then dying cannot stop a penalty, nor end a reward."""
    learns = False
    """Whether `update` does anything."""
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

    def state_dict(self) -> dict[str, Any]:
        """Return everything that its next rewards and updates depend on. Tensors are copies."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  (nothing to load by default)
        """Go on exactly where `state_dict` was taken."""
