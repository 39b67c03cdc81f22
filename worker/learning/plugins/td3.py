"""Twin Delayed Deep Deterministic policy gradient: a deterministic policy and two critics, from a replay buffer
(Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, algorithm 1).

Each gradient step draws transitions (s, a, r, s') and lets, with `y` frozen,

    Q1, Q2 descend   0.5 (Q(s, a) - y)^2        y = r + gamma min_i Q_target,i(s', a')    (r alone where the task ended)
                                                a' = clip(pi_target(s') + clip(noise, -c, c), -1, 1)

and every `policy_delay` gradient steps

    pi ascends Q1(s, pi(s));  Q_target and pi_target move the part `tau` of their way to Q and pi

Actions are `tanh` of the policy's columns. Agents act with noise of their own, whose deviation is published with the
weights (`ludus.collector.gaussian_noise`): `initial_exploration_sigma` until gradient steps begin, then
`exploration_sigma`.

Details:
 1. Every reward signal has Q values of its own with its own gamma, and of the targets the smaller one is taken signal
    by signal. The policy ascends the mean over signals. Rewards of a batch are computed with the signals' networks of
    that time. Beyond a termination, signals that ignore it expect the mean target value of the latest beginnings of
    episodes (ADR 7).
 2. Steps, counters, normalisation and reward signals as in SAC (`algorithms.sac`, 4 and 5).
 3. Where an encoder reads pictures or entities, policy and critics have one each, and the critics' does not learn from
    the policy's objective.

Deviations from the paper, on purpose:
 a. Before gradient steps begin actions are the untrained policy's with large noise, not uniform: an action and the
    policy that took it are described by one head, which collectors, opponents and exported models share.
 b. Policy and critics have one learning rate (the paper's are equal, too, 0.001).

What it does not do: discrete actions, memory, behavioral cloning (a configuration with the latter two is refused).
Stats are in `TD3.term_names`, guards in `off_policy`. Dimensions as in `worker.learning.networks.action_values`.
"""

import copy
import math
from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.config.network import NetworkSettings
from ludus.config.plugins.td3 import TD3Config
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.experience.rollout import Rollout
from worker.learning.algorithms.off_policy import Batch, OffPolicyAlgorithm, ReplayedExperience
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.returns import beyond_termination
from worker.learning.networks.action_values import TrackedActionValues
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.signals import SignalSet, title


class DeterministicActorCritic(nn.Module):
    """The policy, two Q networks, and the targets of all three."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        *,
        head: str,
        generator: torch.Generator,
        critic_settings: NetworkSettings | None = None,
    ) -> None:
        """`critic_settings` are those of the policy by default. Raise `UnsupportedSpec` where there is no network for
        this behavior.
        """
        super().__init__()
        self.actor = Actor(spec, settings, generator, head=head)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(requires_grad=False)
        self.target_actor.body.normalizer = None  # what the actor has encoded is normalised
        self.critics = TrackedActionValues(spec, critic_settings or settings, signals, generator, count=2)

    def target_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the targets."""
        return [*self.target_actor.parameters(), *self.critics.targets.parameters()]

    @torch.no_grad()
    def target_actions(self, encoded: Encoded, noise: Tensor | float) -> Float[Tensor, "R C"]:
        """Return the target policy's actions with noise on them."""
        head, _ = self.target_actor(encoded)
        return (self.target_actor.parts(head).means + noise).clamp(-1.0, 1.0)

    @torch.no_grad()
    def target_values(self, encoded: Encoded, actions: Float[Tensor, "R C"]) -> Float[Tensor, "R S"]:
        """Return the smaller Q of the targets."""
        return self.critics.target_q(encoded, actions).squeeze(3).amin(0)

    @torch.no_grad()
    def track(self, tau: float) -> None:
        """Move all targets the part `tau` of their way."""
        sources = [parameter.detach() for parameter in self.actor.parameters()]
        torch._foreach_lerp_(list(self.target_actor.parameters()), sources, tau)
        self.critics.track(tau)


class TD3(OffPolicyAlgorithm):
    """Networks, optimizers and replay buffer of one behavior."""

    model: DeterministicActorCritic

    def __init__(
        self,
        config: TD3Config,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        expert: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        assert expert is None, "the configuration refuses behavioral_cloning"
        self.generator = torch.Generator().manual_seed(seed)
        self._build = partial(
            DeterministicActorCritic,
            spec,
            config.network_settings,
            len(signals),
            head=config.head,
            generator=self.generator,
        )
        self.model = model = self._build().to(device)
        self.actor = model.actor
        self._log_sigma = model.actor.head_parameters()["noise_log_sigma"]
        """(C,): with the actor's weights it is published to collectors."""
        self._log_sigma.fill_(math.log(config.hyperparameters.initial_exploration_sigma))
        self.actor_optimizer = FlatAdam(model.actor.named_parameters())
        self.critic_optimizer = FlatAdam(model.critics.networks.named_parameters())
        self._steps = torch.zeros((), dtype=torch.int64)
        """Gradient steps so far."""
        self._policy_terms = torch.zeros(2, device=device)
        """The loss and the gradient's norm of the last step of the policy."""
        values = (f"Policy/{title(name)} Value" for name in signals.names)
        norms = ("Losses/Policy Gradient Norm", "Losses/Critic Gradient Norm")
        self.term_names = ("Losses/Policy Loss", norms[0], "Losses/Value Loss", norms[1], *values)
        """Minus the mean of Q1 over signals, and the norm of its gradient, of the last step of the policy; the mean of
        both critics' losses, and the norm of their gradient; the mean of Q1 by signal."""
        super().__init__(
            config,
            device,
            signals,
            ReplayedExperience(config, spec, device, model.actor, signals, self.generator),
            cloning=None,
            stored={
                "model": model,
                "actor_optimizer": self.actor_optimizer,
                "critic_optimizer": self.critic_optimizer,
                "gradient_steps": self._steps,
                "policy_terms": self._policy_terms,
            },
            changed=model.target_parameters(),
        )

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Store a round and take the gradient steps that are due; see `OffPolicyAlgorithm.update`."""
        version = self.version
        metrics = super().update(rollout, step)
        if self.version != version:  # the weights of collectors change with the version alone
            self._log_sigma.fill_(math.log(self.config.hyperparameters.exploration_sigma))
        return metrics

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""
        batch, hyper = self.experience.batch(), self.config.hyperparameters
        targets = batch.rewards + batch.discounts * self.following_values(batch)
        self.critic_optimizer.zero_gradient()
        with torch.enable_grad():
            value_loss, values = self.value_loss(batch, targets)
            torch.autograd.backward([value_loss])
        critic_norm = self.critic_optimizer.step(learning_rate)
        self._steps += 1
        if int(self._steps) % hyper.policy_delay == 0:
            self.actor_optimizer.zero_gradient()
            with torch.enable_grad():
                policy_loss = self.policy_loss(batch)
                torch.autograd.backward([policy_loss])
            norm = self.actor_optimizer.step(learning_rate)
            self._policy_terms.copy_(torch.stack((policy_loss.detach(), norm)))
            self.model.track(hyper.tau)
        return torch.cat([self._policy_terms, torch.stack((value_loss.detach(), critic_norm)), values])

    def value_loss(self, batch: Batch, targets: Float[Tensor, "R S"]) -> tuple[Float[Tensor, ""], Float[Tensor, " S"]]:
        """Return half the squared error of both critics, mean over both and over signals, and the mean of Q1."""
        critics = self.model.critics
        q = critics.q(critics.encodings(batch.encoded), batch.continuous).squeeze(3)  # (2, R, S)
        squares = (q - targets).square().mean((0, 2))
        return 0.5 * torch.sum(squares * batch.weight[:, 0]), torch.sum(q[0].detach() * batch.weight, 0)

    def policy_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """Return minus the mean over signals of Q1 of the policy's actions."""
        actor, critics = self.model.actor, self.model.critics
        head, _ = actor(batch.encoded)
        q = critics.q_of_policy(critics.encodings(batch.encoded)[:1], actor.parts(head).means)
        return -torch.sum(q[0].mean((1, 2)) * batch.weight[:, 0])

    def following_values(self, batch: Batch) -> Float[Tensor, "R S"]:
        """Return what the targets expect after each step, where a signal goes on beyond an episode's end there too."""
        experience, hyper = self.experience, self.config.hyperparameters
        drawn = experience.noise(batch.continuous.shape[1])
        assert drawn is not None, "there are columns"
        noise = (drawn * hyper.target_noise).clamp(-hyper.target_noise_clip, hyper.target_noise_clip)
        model = self.model
        following = model.target_values(batch.following, model.target_actions(batch.following, noise))
        if not experience.ignores_end:
            return following
        first = experience.encoded_beginnings()
        beginnings = model.target_values(first, model.target_actions(first, 0.0))
        return beyond_termination(following, batch.terminated, beginnings, self.signals.ignores_termination)
