"""A clone run: an actor learns from demonstrations alone, by the loss of `algorithms.bc`."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.config.behavior import CloneConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.bc import LOSS, Imitator
from worker.learning.algorithms.training_state import TrainingState
from worker.learning.functional.schedules import LEARNING_RATE_FLOOR, Schedule
from worker.learning.networks.actor import Actor


class Cloning:
    """A clone run: an actor learns from demonstrations alone. Deterministic by seed.

    Shuffled passes without end; a pass's last minibatch may be smaller. The statistics of a normalizer are those of the
    demonstrations, from the beginning on.
    """

    version: int
    """How many gradient steps the weights have seen: the version under which they are published."""

    def __init__(
        self,
        config: CloneConfig,
        spec: BehaviorSpec,
        demonstrations: DemonstrationBuffer,
        device: torch.device,
        seed: int,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        hyper, memory = config.hyperparameters, config.network_settings.memory
        self.config, self.version = config, 0
        self._generator = torch.Generator().manual_seed(seed)
        self.actor = Actor(spec, config.network_settings, self._generator).to(device)
        if self.actor.normalizer is not None:
            everything = demonstrations.observations(demonstrations.transitions.index)
            vectors = [values.float() for values in everything if values.dim() == 2]
            self.actor.normalizer.merge(torch.cat(vectors, 1))
        self.reconfigure(config)
        self._imitator = Imitator(
            self.actor,
            demonstrations,
            batch_size=hyper.batch_size,
            sequence_length=1 if memory is None else memory.sequence_length,
            generator=self._generator,
        )
        self._order, self._at = self._imitator.shuffled(), 0
        """A shuffled pass over the demonstrations, and how much of it is done."""
        optimizer = self._imitator.optimizer
        self._state = TrainingState(
            {"generator": self._generator, "model": self.actor, "optimizer": optimizer}, changed=[optimizer]
        )

    def reconfigure(self, config: CloneConfig) -> None:
        """Go on with another configuration from the next iteration on; only numbers of its schedule differ."""
        self.config, hyper = config, config.hyperparameters
        self._schedule = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )

    def iterate(self, iterations: int = 1) -> dict[str, float]:
        """Take gradient steps; return the metrics, means over these steps.

        Raise `Diverged` if any value on the way is not finite or the loss explodes. Weights and version are then those
        from before, but the pass over the demonstrations goes on: taken once more, these steps meet other minibatches.
        """
        version, losses = self.version, []
        with self._state.undone_if_diverged():
            for step in range(version, version + iterations):
                rate, chosen = self._schedule.at(step), self._next()
                losses.append(self._imitator.learn(chosen, rate))
            loss = self._imitator.conclude(losses, chosen)
        self.version += iterations
        return {LOSS: loss, "Policy/Learning Rate": rate}

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them."""
        return self.actor.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next iteration depends on. Tensors are copies."""
        own = {"version": self.version, "order": self._order.clone(), "at": self._at}
        return {**own, **self._state.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; with other demonstrations than then, in a new pass."""
        self._state.load_state_dict(state)
        self.version = state["version"]
        same = len(state["order"]) == self._imitator.sequences
        self._order, self._at = (state["order"].cpu(), state["at"]) if same else (self._imitator.shuffled(), 0)

    def _next(self) -> Tensor:
        """Return the sequences of the next minibatch."""
        if self._at >= len(self._order):
            self._order, self._at = self._imitator.shuffled(), 0
        chosen = self._order[self._at : self._at + self._imitator.size]
        self._at += self._imitator.size
        return chosen
