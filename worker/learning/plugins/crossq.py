"""CrossQ: SAC without target networks, whose critics are wide and normalised over the batch (Bhatt et al. 2024,
https://arxiv.org/abs/1902.05605, algorithm 1).

Each gradient step draws transitions (s, a, r, s') and an action a' of the policy at s', and lets

    Q1, Q2 descend     0.5 (Q(s, a) - y)^2        y = r + gamma (min_i Q_i(s', a') - alpha log pi(a'))
                                                  (r alone where the task ended)

where `[Q(s, a), Q(s', a')] = Q([s, s'], [a, a'])` is one pass of one batch, so that both halves are normalised by the
statistics of their mixture. `y` is a constant in the gradient. Every `policy_delay` gradient steps

    the policy ascend  min_i Q_i(s, pi(s)) - alpha log pi         with the running statistics (evaluation mode)
    log alpha descend  log alpha * (entropy - target entropy)

Details:
 1. Layers are normalised by batch renormalisation (`worker.learning.networks.batch_renorm`), also the inputs. Adam's
    beta1 is 0.5, critics are `critic_hidden_units` wide.
 2. Policy, entropy coefficient (`init_entcoef`) and target entropy, -C nats, are those of SAC (`algorithms.sac`, 2),
    and so are steps, counters, normalisation, reward signals, cloning (4 and 5) and what is beyond a termination (where
    the critics are in evaluation mode). Every signal has Q values of its own with its own gamma; the smaller one is
    taken signal by signal, and the policy ascends the mean over signals.
 3. Where an encoder reads pictures or entities, the policy and each critic have one of their own; they are not
    normalised over the batch.
 4. Ranks that learn as one normalise by their own batches, and average the running statistics.

Deviations from the paper, on purpose:
 a. The policy is not normalised over the batch: collectors and exported models compute it, and all of them would need
    the statistics. `normalize` normalises its observations, and the critics'.
 b. The entropy coefficient steps together with the policy, by the same Adam.
 c. The entropy bonus at s' is in the target of every signal that goes on there, as in SAC here.

What it does not do: discrete actions, memory (a configuration with it is refused). Stats are in `CrossQ.term_names`,
guards in `off_policy`. Dimensions as in `worker.learning.networks.action_values`.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ludus.config.network import NetworkSettings
from ludus.config.plugins.crossq import CrossQConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.bc import cloning_of
from worker.learning.algorithms.off_policy import Batch, OffPolicyAlgorithm, ReplayedExperience
from worker.learning.algorithms.sac_stats import GAUSSIAN_ENTROPY
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.returns import beyond_termination
from worker.learning.networks.action_values import ActionValues, SquashedActorCritic
from worker.learning.networks.batch_renorm import BatchRenormBody
from worker.learning.networks.soft_actor_critic import CriticNetwork
from worker.learning.rewards.signals import SignalSet, title

BETA1 = 0.5
"""Adam's decay of the mean gradient."""


class BatchRenormCritic(CriticNetwork):
    """A critic with a `BatchRenormBody`, whatever `hidden_type` is. Goals are observations as any other."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        outputs: int,
        generator: torch.Generator,
        actions: int = 0,
    ) -> None:
        plain = settings.model_copy(update={"hidden_type": "dense", "goal_conditioning_type": "none"})
        super().__init__(spec, plain, signals, outputs, generator, actions)
        layout, inputs = self.body.layout, self.body.encoder.size + actions
        self.body.hidden = BatchRenormBody(
            inputs, layout.hidden_units, layout.num_layers, generator, activation=layout.activation
        )


class CrossQ(OffPolicyAlgorithm):
    """Actor, critics, coefficient, optimizers and replay buffer of one behavior."""

    model: SquashedActorCritic[ActionValues]

    def __init__(
        self,
        config: CrossQConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        expert: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        generator, units = torch.Generator().manual_seed(seed), config.hyperparameters.critic_hidden_units
        wide = config.network_settings.model_copy(update={"hidden_units": units})
        critics = partial(ActionValues, spec, wide, len(signals), generator, count=2, network=BatchRenormCritic)
        self.generator, self._build = generator, partial(SquashedActorCritic, config, spec, device, generator, critics)
        self.model = model = self._build()
        self.actor, self.critics, self.log_coefficient = model.actor, model.critics.eval(), model.log_coefficient
        coefficient = ("log_coefficient", self.log_coefficient)
        self.actor_optimizer = FlatAdam([*self.actor.named_parameters(), coefficient], beta1=BETA1)
        self.critic_optimizer = FlatAdam(self.critics.named_parameters(), beta1=BETA1)
        self._steps = torch.zeros((), dtype=torch.int64)
        """Gradient steps so far."""
        self._policy_terms = torch.zeros(2, device=device)
        """The loss and the gradient's norm of the last step of the policy."""
        self.term_names = (
            "Losses/Policy Loss",
            "Losses/Policy Gradient Norm",
            "Losses/Value Loss",
            "Losses/Critic Gradient Norm",
            "Policy/Entropy",
            "Policy/Continuous Entropy Coeff",
            *(f"Policy/{title(name)} Value" for name in signals.names),
        )
        """Minus the policy's soft value, and the norm of its gradient, of the last step of the policy; the mean of both
        critics' losses, and the norm of their gradient; the entropy of the columns before tanh at the observations that
        followed, mean over columns; alpha; the mean of Q1 by signal."""
        experience = ReplayedExperience(config, spec, device, self.actor, signals, self.generator)
        super().__init__(
            config,
            device,
            signals,
            experience,
            cloning_of(config, self.actor, expert, experience.length, seed),
            stored={
                "actor": self.actor,
                "critics": self.critics,
                "log_coefficients": self.log_coefficient,
                "actor_optimizer": self.actor_optimizer,
                "critic_optimizer": self.critic_optimizer,
                "gradient_steps": self._steps,
                "policy_terms": self._policy_terms,
            },
            changed=self.critics.buffers(),
        )

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""
        batch = self.experience.batch()
        with torch.no_grad():
            following = self.model.act(batch.following, self.experience.noise)
        self.critic_optimizer.zero_gradient()
        with torch.enable_grad():
            q, following_q = self.joint_q(batch, following.action)
            targets = self.targets(batch, following_q + self.model.bonus(following))
            value_loss = 0.5 * torch.sum((q - targets).square().mean((0, 2)) * batch.weight[:, 0])
            torch.autograd.backward([value_loss])
        critic_norm = self.critic_optimizer.step(learning_rate)
        self._steps += 1
        if int(self._steps) % self.config.hyperparameters.policy_delay == 0:
            self.actor_optimizer.zero_gradient()
            with torch.enable_grad():
                policy_loss, coefficient_loss = self.policy_losses(batch)
                torch.autograd.backward([policy_loss + coefficient_loss])
            self.actor_optimizer.step(learning_rate)
            # Behind the step the gradient is the mean over all ranks; its last entry is the coefficient's.
            norm = torch.linalg.vector_norm(self.actor_optimizer.gradient[:-1])
            self._policy_terms.copy_(torch.stack((policy_loss.detach(), norm)))
        entropy = following.log_sigma.mean() + GAUSSIAN_ENTROPY
        others = torch.stack((value_loss.detach(), critic_norm, entropy, self.log_coefficient.detach().exp()))
        return torch.cat([self._policy_terms, others, torch.sum(q[0].detach() * batch.weight, 0)])

    def joint_q(
        self, batch: Batch, following_actions: Float[Tensor, "R C"]
    ) -> tuple[Float[Tensor, "2 R S"], Float[Tensor, "R S"]]:
        """Return Q of both critics at the steps of a batch, and the smaller Q of what follows, a constant. Both are
        normalised as one batch, whose statistics are added to the running ones.
        """
        both = [torch.cat(halves) for halves in zip(batch.encoded, batch.following, strict=True)]
        self.critics.train()
        q = self.critics.q(self.critics.encodings(both), torch.cat([batch.continuous, following_actions])).squeeze(3)
        self.critics.eval()
        now, following = q.chunk(2, 1)
        return now, following.detach().amin(0)

    @torch.no_grad()
    def targets(self, batch: Batch, following_values: Float[Tensor, "R S"]) -> Float[Tensor, "R S"]:
        """Return what Q is compared with, where these soft values are expected after each step."""
        if self.experience.ignores_end:
            encoded = self.experience.encoded_beginnings()
            first = self.model.act(encoded, self.experience.noise)
            q = self.critics.q(self.critics.encodings(encoded), first.action).squeeze(3).amin(0)
            beginnings = q + self.model.bonus(first)
            ignores = self.signals.ignores_termination
            following_values = beyond_termination(following_values, batch.terminated, beginnings, ignores)
        return batch.rewards + batch.discounts * following_values

    def policy_losses(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the losses of policy and coefficient. They have no weight in common."""
        model, weight = self.model, batch.weight[:, 0]
        squashed = model.act(batch.encoded, self.experience.noise)
        q = self.critics.q_of_policy(self.critics.encodings(batch.encoded), squashed.action).squeeze(3)  # (2, R, S)
        policy_loss = -torch.sum((q.amin(0).mean(1) + model.bonus(squashed)[:, 0]) * weight)
        return policy_loss, model.coefficient_loss(squashed, weight)
