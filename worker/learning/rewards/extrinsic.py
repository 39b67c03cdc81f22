"""The game's own rewards: the agent's, and its group's.

As in ML-Agents 1.1.0 (`torch_entities/components/reward_providers/extrinsic_reward_provider.py`) their sum is what PPO
and SAC learn from; POCA adds the mates' rewards. Cumulative rewards, as the metrics show them, are without groups'.

Deviation: ML-Agents logs a warning when PPO or SAC first sees a group reward. Nothing is lost, it counts in full for
whoever got it, so nothing is said here.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from worker.experience.transitions import Transitions


class ExtrinsicReward:
    """Reads the rewards of the steps; learns nothing."""

    ignores_termination, learns = False, False

    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return the agent's own rewards plus its group's."""
        return transitions.rewards + transitions.group_rewards

    def update(self, transitions: Transitions) -> dict[str, Float[Tensor, ""]]:  # noqa: ARG002  (as the protocol)
        """Learn nothing."""
        return {}

    def is_finite(self) -> Bool[Tensor, ""]:
        """Return true: there are no weights."""
        return torch.tensor(True)

    def snapshot(self) -> None:
        """Return None: nothing changes."""

    def restore(self, snapshot: None) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
