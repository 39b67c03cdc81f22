"""ReBRAC: TD3 that stays near demonstrated actions, in the policy and in the critics' targets (Tarasov et al. 2023,
https://arxiv.org/abs/2305.09836).

Each gradient step draws transitions (s, a, r, s', a'), a' the demonstrated action at s', and lets, with `y` frozen,

    Q1, Q2 descend   0.5 (Q(s, a) - y)^2     y = r + gamma (min Q_target(s', b) - beta2 |b - a'|^2)
                                             b = clip(pi_target(s') + clip(noise, -c, c), -1, 1)

(r alone where the task ended), and every `policy_delay` gradient steps

    pi descends      beta1 |pi(s) - a|^2 - min Q(s, pi(s)) / mean |min Q(s, pi(s))|      (the divisor is frozen)

then Q_target and pi_target move the part `tau` of their way to Q and pi. Distances are sums over columns.

Details, as in the paper's code unless marked:
 1. Networks and steps are TD3's (`worker.learning.plugins.td3`), with layer norms in the critics. Depth (the paper: 3
    hidden layers of 256) is `network_settings`, larger batches are `batch_size`.
 2. The last step of an episode, or of a recording, has no a', and its target no distance.

Deviations, on purpose: layer norms stand before the activation (`networks.normed`), in the paper's code behind it.
Policy and critics have one learning rate, as for locomotion there.

What it does not do: discrete actions. Stats are in `ReBRAC.term_names`, guards in `off_policy`. Dimensions as in
`worker.learning.networks.action_values`.
"""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.plugins.offline import FinetuneConfig, FinetuneHyperparameters, OfflineConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.off_policy import Batch
from worker.learning.data_parallel import average
from worker.learning.fast.adam import FlatAdam
from worker.learning.plugins.offline.learning import NO_NOISE, DemonstratedExperience, OfflineAlgorithm
from worker.learning.plugins.td3 import DeterministicActorCritic
from worker.learning.rewards.signals import SignalSet, title


class ReBRAC(OfflineAlgorithm):
    """Networks, optimizers and replay buffer of one behavior."""

    experience: DemonstratedExperience
    model: DeterministicActorCritic

    def __init__(
        self,
        config: OfflineConfig | FinetuneConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        expert: DemonstrationBuffer,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior, `DemonstrationError` for what cannot be
        learned from.
        """
        if spec.actions.discrete_branches:
            message = "algorithm rebrac learns continuous actions only; take algorithm iql, which learns branches, too"
            raise UnsupportedSpec(spec.name, "actions_discrete", message)
        self.generator = torch.Generator().manual_seed(seed)
        settings = config.network_settings
        normed = config.hyperparameters.critic_layer_norm
        self._build = partial(
            DeterministicActorCritic,
            spec,
            settings,
            len(signals),
            head=config.head,
            generator=self.generator,
            critic_settings=settings.model_copy(update={"hidden_type": "layer_norm"}) if normed else settings,
        )
        self.model = model = self._build().to(device)
        self.actor = model.actor
        self.actor_optimizer = FlatAdam(model.actor.named_parameters())
        self.critic_optimizer = FlatAdam(model.critics.networks.named_parameters())
        self._steps = torch.zeros((), dtype=torch.int64)
        """Gradient steps so far."""
        self._policy_terms = torch.zeros(3, device=device)
        """The loss, the gradient's norm and the distance of the last step of the policy."""
        values = (f"Policy/{title(name)} Value" for name in signals.names)
        self.term_names = (
            *("Losses/Policy Loss", "Losses/Policy Gradient Norm", "Policy/Demonstration Distance"),
            *("Losses/Value Loss", "Losses/Critic Gradient Norm", *values),
        )
        """Those of `_policy_terms`; the mean of both critics' losses, and the norm of their gradient; the mean of Q1 by
        signal."""
        super().__init__(
            config,
            device,
            signals,
            DemonstratedExperience(config, spec, device, self.actor, signals, self.generator, expert),
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
        self.set_noise()

    def log_sigma(self) -> Float[Tensor, " C"]:
        """Return the configured one."""
        hyper = self.config.hyperparameters
        sigma = math.log(hyper.exploration_sigma) if isinstance(hyper, FinetuneHyperparameters) else NO_NOISE
        return torch.full_like(self.actor.head_parameters()["noise_log_sigma"], sigma)

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""
        batch, hyper = self.experience.batch(), self.config.hyperparameters
        targets = self.targets(batch)
        self.critic_optimizer.zero_gradient()
        with torch.enable_grad():
            critics = self.model.critics
            q = critics.q(critics.encodings(batch.encoded), batch.continuous).squeeze(3)  # (2, R, S)
            value_loss = 0.5 * torch.sum((q - targets).square().mean((0, 2)) * batch.weight[:, 0])
            torch.autograd.backward([value_loss])
        critic_norm = self.critic_optimizer.step(learning_rate)
        self._steps += 1
        if int(self._steps) % hyper.policy_delay == 0:
            self.actor_optimizer.zero_gradient()
            with torch.enable_grad():
                policy_loss, distance = self.policy_loss(batch)
                torch.autograd.backward([policy_loss])
            norm = self.actor_optimizer.step(learning_rate)
            self._policy_terms.copy_(torch.stack((policy_loss.detach(), norm, distance)))
            self.model.track(hyper.tau)
        values = torch.sum(q[0].detach() * batch.weight, 0)
        return torch.cat([self._policy_terms, torch.stack((value_loss.detach(), critic_norm)), values])

    @torch.no_grad()
    def targets(self, batch: Batch) -> Float[Tensor, "R S"]:
        """Return what Q is compared with. `batch` is the one that was drawn last."""
        experience, hyper, model = self.experience, self.config.hyperparameters, self.model
        drawn = experience.noise(batch.continuous.shape[1])
        assert drawn is not None, "there are columns"
        noise = (drawn * hyper.target_noise).clamp(-hyper.target_noise_clip, hyper.target_noise_clip)
        actions = model.target_actions(batch.following, noise)
        shown, known = experience.replay.next_actions(experience.drawn_rows)
        distance = (actions - shown.to(actions.device)).square().sum(1) * known.to(actions.device)
        following = model.target_values(batch.following, actions) - hyper.beta2 * distance.unsqueeze(1)
        return batch.rewards + batch.discounts * following

    def policy_loss(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return what the policy descends, and the mean squared distance to the actions that were taken."""
        actor, critics, weight = self.model.actor, self.model.critics, batch.weight[:, 0]
        head, _ = actor(batch.encoded)
        actions = actor.parts(head).means
        q = critics.q_of_policy(critics.encodings(batch.encoded), actions).squeeze(3).amin(0).mean(1)  # (R,)
        size = torch.sum(q.detach().abs() * weight)
        average(size)
        distance = torch.sum((actions - batch.continuous).square().sum(1) * weight)
        loss = self.config.hyperparameters.beta1 * distance - torch.sum(q * weight) / size.clamp(min=1e-8)
        return loss, distance.detach()
