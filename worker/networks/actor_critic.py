"""Actor and critic as a learner sees them: predictions for whole batches, and the way back to the weights."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from worker.functional.distributions import JointDistribution, joint_distribution, joint_gradient
from worker.networks.actor import Actor
from worker.networks.critic import Critic
from worker.networks.dense import Recorded
from worker.networks.layout import ActorLayout


class Prediction(NamedTuple):
    """What the networks say of a batch of steps, and what is needed for the way back."""

    joint: JointDistribution
    """Log-probability of the actions taken and entropy of the policy."""
    values: Float[Tensor, "B S"]
    actor_features: Float[Tensor, "B U"]
    actor_layers: list[Recorded]
    critic_features: Float[Tensor, "B U"]
    """The actor's, where the body is shared."""
    critic_layers: list[Recorded]


class ActorCritic(nn.Module):
    """An actor and a critic, separate or with one body, that see the same encoded observations."""

    def __init__(self, layout: ActorLayout, *, signals: int, shared_critic: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.layout = layout
        self.actor = Actor(layout, generator)
        self.critic = Critic(layout, signals, shared=shared_critic, generator=generator)

    def evaluate(
        self,
        encoded: Float[Tensor, "B O"],
        continuous: Float[Tensor, "B C"],
        discrete: Int[Tensor, "B D"],
        masks: Bool[Tensor, "B M"] | None,
    ) -> Prediction:
        """Predict log-probability and entropy of actions, and values, for encoded observations."""
        actor, critic = self.actor, self.critic
        features, layers = actor.body.record(encoded)
        critic_features, critic_layers = (features, layers) if critic.body is None else critic.body.record(encoded)
        joint = joint_distribution(
            actor.head(features), actor.log_sigma, continuous, discrete, masks, self.layout.discrete_branches
        )
        return Prediction(joint, critic.heads(critic_features), features, layers, critic_features, critic_layers)

    def backward(
        self,
        prediction: Prediction,
        by_log_prob: Float[Tensor, " B"],
        by_entropy: float,
        by_values: Float[Tensor, "B S"],
    ) -> None:
        """Write the derivatives of a loss by every weight to its `grad`, given those by what was predicted.

        `by_entropy` is the same for every row.
        """
        actor, critic = self.actor, self.critic
        by_head, by_log_sigma = joint_gradient(prediction.joint, by_log_prob, by_entropy)
        actor.head.backward(prediction.actor_features, by_head)
        if actor.log_sigma.grad is not None:
            actor.log_sigma.grad.copy_(by_log_sigma)
        critic.heads.backward(prediction.critic_features, by_values)
        by_features = actor.head.by_inputs(by_head)
        by_critic_features = critic.heads.by_inputs(by_values)
        if critic.body is None:
            by_features += by_critic_features
        else:
            critic.body.backward(prediction.critic_layers, by_critic_features)
        actor.body.backward(prediction.actor_layers, by_features)

    @torch.no_grad()
    def values(self, encoded: Float[Tensor, "B O"], rows: int = 4096) -> Float[Tensor, "B S"]:
        """Return values, `rows` at a time: the activations of a whole buffer would not fit a cache."""
        return torch.cat([self.critic(self._critic_inputs(chunk)) for chunk in torch.split(encoded, rows)])

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trained parameter by name, but no empty ones (`log_sigma` without continuous columns)."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.numel())

    def _critic_inputs(self, encoded: Tensor) -> Tensor:
        return self.actor.body(encoded) if self.critic.body is None else encoded
