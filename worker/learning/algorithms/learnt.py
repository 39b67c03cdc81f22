"""What PPO and POCA carry from update to update, as one thing: saved, loaded, and gone back to."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from worker.learning.algorithms.bc import BehavioralCloning
from worker.learning.algorithms.recollection import Memories
from worker.learning.networks.optimizer import FlatAdam, Snapshot
from worker.learning.rewards.episodes import EpisodeReturns
from worker.learning.rewards.signals import SignalSet


class Saved(NamedTuple):
    """Everything that an update changes, to go back to."""

    optimizer: Snapshot
    signals: list[Any]
    memories: dict[str, Any]
    cloning: dict[str, Any] | None


@dataclass(frozen=True)
class Learnt:
    """The parts of an algorithm that its next update depends on."""

    model: nn.Module
    generator: torch.Generator
    optimizer: FlatAdam
    signals: SignalSet
    memories: Memories
    episodes: EpisodeReturns
    cloning: BehavioralCloning | None

    def save(self) -> Saved:
        """Return what an update changes before it is known to be good."""
        cloning = None if self.cloning is None else self.cloning.state_dict()
        return Saved(self.optimizer.snapshot(), self.signals.snapshot(), self.memories.state_dict(), cloning)

    def restore(self, saved: Saved) -> None:
        """Go back to before an update."""
        self.optimizer.restore(saved.optimizer)
        self.signals.restore(saved.signals)
        self.memories.load_state_dict(saved.memories)
        if self.cloning is not None and saved.cloning is not None:
            self.cloning.load_state_dict(saved.cloning)

    def state_dict(self) -> dict[str, Any]:
        """Return everything. Tensors are copies."""
        return {
            "generator": self.generator.get_state(),
            "model": {name: tensor.clone() for name, tensor in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "signals": self.signals.state_dict(),
            "memories": self.memories.state_dict(),
            "episodes": self.episodes.state_dict(),
            "cloning": None if self.cloning is None else self.cloning.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.signals.load_state_dict(state["signals"])
        self.memories.load_state_dict(state["memories"])
        self.episodes.load_state_dict(state["episodes"])
        if self.cloning is not None and state["cloning"] is not None:
            self.cloning.load_state_dict(state["cloning"])
