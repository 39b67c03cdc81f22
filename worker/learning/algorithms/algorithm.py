"""The interfaces of algorithms: PPO, SAC and POCA are alike for their learner, and so are all that learn from
demonstrations alone.

An algorithm owns networks, optimizers, reward signals and its random generator. It neither collects nor counts steps,
writes no file and knows no process.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.config.trainer import DemonstratedConfig
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.networks.actor import Actor


class Learning(ABC):
    """What all algorithms share: a policy, and a state that goes on where it was saved."""

    version: int
    """Number of the weights that `flat_weights` returns; it grows with each change of them."""
    actor: Actor

    @abstractmethod
    def reconfigure(self, config: Any) -> None:
        """Go on with another configuration from the next update on: of the same kind, and other than the present one
        in the `amendable` keys alone."""

    @abstractmethod
    def state_dict(self) -> State:
        """Return everything that the next update depends on. It is written before the next update begins."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken."""

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them."""
        return self.actor.flatten()


class Algorithm(Learning):
    """Improves the policy of one behavior, round by round."""

    @abstractmethod
    def round_steps(self) -> int:
        """Return how many agent steps one round of collection has: the steps that one call of `update` gets."""

    @abstractmethod
    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Learn from one round; `step` is the policy's step, its own steps included, at which schedules are read.

        Return the measurements, by metric name; None when nothing was learned (a replay buffer that is not full enough
        yet). The weights and their version are then those from before, as they are where every step was too old to be
        learned from (`max_policy_lag`). Raise `Diverged`, with everything as before the
        update, if any value on the way is not finite.
        """


class DemonstratedAlgorithm(Learning):
    """Improves the policy of one behavior from demonstrations alone, by gradient steps.

    `version` counts these: it is the behavior's step.
    """

    config: DemonstratedConfig

    @abstractmethod
    def iterate(self, iterations: int = 1) -> dict[str, float]:
        """Take gradient steps; return the metrics, means over these steps.

        Raise `Diverged` if any value on the way is not finite or explodes. Weights and version are then those from
        before; taken once more, these steps meet other minibatches.
        """


@runtime_checkable
class Compilable(Protocol):
    """An algorithm that can be made faster by a compiler."""

    def compile(self) -> None:
        """Fuse the operations of an update by `torch.compile` from the next one on, which then takes seconds once."""
