"""What workers build of the configurations: A2C, and the effort signal."""

import torch
from torch import Tensor

from ludus.protocol.spec import BehaviorSpec
from tutorial_plugin.reward import EffortConfig
from worker.experience.transitions import Transitions
from worker.learning.algorithms.batch import Batch
from worker.learning.algorithms.on_policy import VALUE_COEFFICIENT, Loss, Rates
from worker.learning.algorithms.ppo import PPO, PPOExperience
from worker.learning.algorithms.ppo_stats import entropies
from worker.learning.functional.losses import mean_of_rows, squared_error
from worker.learning.rewards.signal import RewardSignal


class A2C(PPO):
    """PPO's actor, critic, targets and minibatches with another objective: the policy gradient itself."""

    def loss(self, experience: PPOExperience, minibatch: Batch, rates: Rates) -> Loss:  # noqa: ARG002
        """Return `-log p(a) A`, the value loss and the entropy bonus of a minibatch, as one scalar."""
        real = minibatch.real
        joint, values = self.evaluate(minibatch)
        policy_loss = mean_of_rows(joint.log_prob * minibatch.advantage, real).neg()
        value_loss = squared_error(values, minibatch.returns, real)
        objective = policy_loss + VALUE_COEFFICIENT * value_loss - rates.beta * mean_of_rows(joint.entropy, real)
        terms = {"policy loss": policy_loss, "value loss": value_loss, **entropies(joint, self.actor.log_sigma, real)}
        return Loss(objective, terms, joint.log_prob - minibatch.log_prob)


class Effort(RewardSignal):
    """Costs what the actions of a step cost. It learns nothing."""

    def __init__(
        self, config: EffortConfig, spec: BehaviorSpec, device: torch.device, generator: torch.Generator
    ) -> None:
        """It needs nothing of these: every reward signal is built alike."""

    def evaluate(self, transitions: Transitions) -> Tensor:
        """Return minus the mean square of each step's continuous actions, (N,)."""
        continuous = transitions.continuous
        return continuous.square().mean(1).neg() if continuous.shape[1] else continuous.new_zeros(len(continuous))
