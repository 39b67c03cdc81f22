"""Truncated Quantile Critics: SAC whose critics estimate the distribution of the return, and whose target leaves out
the largest quantiles (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269).

Each of `N` critics has `K` outputs `z_k`, the quantiles of the return at the fractions `t_k = (k - 1/2) / K`. Each
gradient step draws transitions (s, a, r, s') and lets, with `y` frozen,

    critics descend    mean over k and j of |t_k - [y_j < z_k]| * huber(y_j - z_k(s, a))
                       y_j = r + gamma (z'_j - alpha log pi(a'))                      (r alone where the task ended)
    the policy ascend  mean over all critics and quantiles of z(s, pi(s)), minus alpha log pi
    log alpha descend  log alpha * (entropy - target entropy)

`z'` are the quantiles of all target critics at s' and an action a' of the policy there, sorted, without the `N *
dropped_quantiles` largest: overestimation is cut from a distribution, rather than by the smaller of two means.

Details:
 1. Policy, entropy coefficient (`init_entcoef`) and target entropy, -C nats, are those of SAC (`algorithms.sac`, 2),
    and so are steps, counters, normalisation, reward signals, cloning (4 and 5) and what is beyond a termination. Every
    signal has quantiles of its own with its own gamma, and drops quantiles of its own. The policy ascends the mean
    over signals.
 2. All losses are taken at the same weights; then policy, critics and the coefficient step together by one Adam.

Deviations from the paper, on purpose:
 a. The entropy bonus at s' is in the target of every signal that goes on there, as SAC's value network has it here.
 b. Two critics, as in Stable-Baselines3, instead of five (`critics: 5`).

What it does not do: discrete actions, memory (a configuration with it is refused). Stats are in `TQC.term_names`,
guards in `off_policy`. Dimensions as in `worker.learning.networks.action_values`; `K` quantiles of a critic, `J` of the
target.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float
from torch import Tensor

from ludus.config.plugins.tqc import TQCConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.bc import cloning_of
from worker.learning.algorithms.off_policy import Batch, OffPolicyAlgorithm, ReplayedExperience
from worker.learning.algorithms.sac_stats import GAUSSIAN_ENTROPY
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.returns import beyond_termination
from worker.learning.networks.action_values import SquashedActorCritic, TrackedActionValues
from worker.learning.networks.encoder import Encoded
from worker.learning.rewards.signals import SignalSet, title


class Loss(NamedTuple):
    """The parts of the scalar that a gradient step descends, and what is measured of them."""

    policy: Float[Tensor, ""]
    value: Float[Tensor, ""]
    coefficient: Float[Tensor, ""]
    entropy: Float[Tensor, ""]
    """Of the columns before tanh, mean over columns, as ML-Agents counts it."""
    values: Float[Tensor, " S"]
    """Mean of all quantiles of the actions that were drawn."""


class TQC(OffPolicyAlgorithm):
    """Actor, critics, coefficient, optimizer and replay buffer of one behavior."""

    model: SquashedActorCritic[TrackedActionValues]

    def __init__(
        self,
        config: TQCConfig,
        spec: BehaviorSpec,
        device: torch.device,
        seed: int,
        signals: SignalSet,
        expert: DemonstrationBuffer | None = None,
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        hyper, network, generator = config.hyperparameters, config.network_settings, torch.Generator().manual_seed(seed)
        critics = partial(
            TrackedActionValues, spec, network, len(signals), generator, count=hyper.critics, outputs=hyper.quantiles
        )
        self.generator, self._build = generator, partial(SquashedActorCritic, config, spec, device, generator, critics)
        self.model = model = self._build()
        self.actor, self.critics, self.log_coefficient = model.actor, model.critics, model.log_coefficient
        self.fractions = (torch.arange(hyper.quantiles, device=device) + 0.5) / hyper.quantiles
        """(K,): those of the return that lie below each quantile."""
        groups = [
            [(f"actor.{name}", part) for name, part in self.actor.named_parameters() if part.numel()],
            [(f"critics.{name}", part) for name, part in self.critics.named_parameters() if part.requires_grad],
            [("log_coefficient", self.log_coefficient)],
        ]
        self.optimizer = FlatAdam([item for group in groups for item in group])
        sizes = [sum(part.numel() for _, part in group) for group in groups]
        self._actor_gradient, self._critic_gradient, _ = torch.split(self.optimizer.gradient, sizes)
        values = (f"Policy/{title(name)} Value" for name in signals.names)
        self.term_names = (
            "Losses/Policy Loss",
            "Losses/Value Loss",
            "Losses/Policy Gradient Norm",
            "Losses/Critic Gradient Norm",
            "Policy/Entropy",
            "Policy/Continuous Entropy Coeff",
            *values,
        )
        """Minus the policy's soft value; the quantile loss, mean over critics; norms of their gradients;
        `Loss.entropy`; alpha; `Loss.values` by signal."""
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
                "optimizer": self.optimizer,
            },
            changed=self.critics.targets.parameters(),
        )

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step of everything; return the terms of `term_names`."""
        batch = self.experience.batch()
        targets = self.targets(batch)
        self.optimizer.zero_gradient()
        with torch.enable_grad():
            loss = self.loss(batch, targets)
            torch.autograd.backward([loss.policy + loss.value + loss.coefficient])
        alpha = self.log_coefficient.detach().exp()
        self.optimizer.step(learning_rate)
        self.critics.track(self.config.hyperparameters.tau)
        # Behind the step the gradients are the means over all ranks.
        norms = [torch.linalg.vector_norm(part) for part in (self._actor_gradient, self._critic_gradient)]
        terms = (loss.policy.detach(), loss.value.detach(), *norms, loss.entropy, alpha)
        return torch.cat([torch.stack(terms), loss.values])

    def loss(self, batch: Batch, targets: Float[Tensor, "R S J"]) -> Loss:
        """Return the losses of policy, critics and coefficient. They have no weight in common."""
        model, critics, weight = self.model, self.critics, batch.weight[:, 0]
        encodings = critics.encodings(batch.encoded)
        quantiles = critics.q(encodings, batch.continuous)  # (N, R, S, K)
        value_loss = torch.sum(quantile_huber_loss(quantiles, targets, self.fractions) * weight)
        squashed = model.act(batch.encoded, self.experience.noise)
        expected = critics.q_of_policy(encodings, squashed.action).mean((0, 2, 3))  # (R,)
        return Loss(
            policy=-torch.sum((expected + model.bonus(squashed)[:, 0]) * weight),
            value=value_loss,
            coefficient=model.coefficient_loss(squashed, weight),
            entropy=squashed.log_sigma.detach().mean() + GAUSSIAN_ENTROPY,
            values=torch.sum(quantiles.detach().mean((0, 3)) * batch.weight, 0),
        )

    @torch.no_grad()
    def targets(self, batch: Batch) -> Float[Tensor, "R S J"]:
        """Return what the quantiles of each step are compared with: `y_j`, in ascending order."""
        following = self.following_quantiles(batch.following)
        if self.experience.ignores_end:
            beginnings = self.following_quantiles(self.experience.encoded_beginnings())
            flat = beyond_termination(
                following.flatten(1),
                batch.terminated,
                beginnings.flatten(1),
                self.signals.ignores_termination.repeat_interleave(following.shape[2]),
            )
            following = flat.view_as(following)
        return batch.rewards.unsqueeze(2) + batch.discounts.unsqueeze(2) * following

    @torch.no_grad()
    def following_quantiles(self, encoded: Encoded) -> Float[Tensor, "R S J"]:
        """Return the quantiles that the targets expect of an action of the policy, with the bonus of its entropy."""
        hyper = self.config.hyperparameters
        squashed = self.model.act(encoded, self.experience.noise)
        quantiles = self.critics.target_q(encoded, squashed.action)  # (N, R, S, K)
        pooled = quantiles.permute(1, 2, 0, 3).flatten(2).sort(2).values
        kept = max(pooled.shape[2] - round(hyper.critics * hyper.dropped_quantiles), 1)
        return pooled[..., :kept] + self.model.bonus(squashed).unsqueeze(2)


def quantile_huber_loss(
    quantiles: Float[Tensor, "N R S K"], targets: Float[Tensor, "R S J"], fractions: Float[Tensor, " K"]
) -> Float[Tensor, " R"]:
    """Return the quantile regression loss of each row with Huber's in place of the absolute error (Dabney et al. 2018,
    equation 10, kappa 1), mean over critics, signals, quantiles and targets.
    """
    errors = targets.unsqueeze(2) - quantiles.unsqueeze(4)  # (N, R, S, K, J)
    sides = (fractions.unsqueeze(1) - (errors.detach() < 0).float()).abs()
    huber = F.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    return (sides * huber).mean((0, 2, 3, 4))
