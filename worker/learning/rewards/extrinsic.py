"""The game's own rewards: the agent's, and its group's.

As in ML-Agents 1.1.0 (`torch_entities/components/reward_providers/extrinsic_reward_provider.py`) their sum is what PPO
and SAC learn from; POCA adds the mates' rewards. Cumulative rewards, as the metrics show them, are without groups'.

Deviation: ML-Agents logs a warning when PPO or SAC first sees a group reward. Here it counts in full for the agent
that received it, so there is no warning.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from jaxtyping import Float
from torch import Tensor

from worker.experience.transitions import Transitions
from worker.learning.rewards.signal import RewardSignal


class ExtrinsicReward(RewardSignal):
    """Reads the rewards of the steps; learns nothing."""

    def evaluate(self, transitions: Transitions) -> Float[Tensor, " N"]:
        """Return the agent's own rewards plus its group's."""
        return transitions.rewards + transitions.group_rewards
