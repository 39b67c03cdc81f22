"""Implicit Q-learning: values of demonstrated actions alone, and a policy that imitates the best of them (Kostrikov et
al. 2021, https://arxiv.org/abs/2110.06169).

Each gradient step draws transitions (s, a, r, s') and lets, with what has a bar frozen,

    V descends        |expectile - [u < 0]| u^2    u = min Q_target(s, a) - V(s)                     (equation 5)
    Q1, Q2 descend    (Q(s, a) - y)^2              y = r + gamma V(s')    (r alone where the task ended; equation 6)
    the policy ascends  w log pi(a | s)            w = min(exp(temperature (Q_target(s, a) - V(s))), advantage_clip)
                                                                                                     (equation 7)

and Q_target moves the part `tau` of its way to Q. No action but demonstrated (or played) ones is ever evaluated.

Details, as in the paper's code (https://github.com/ikostrikov/implicit_q_learning) unless marked:
 1. Continuous actions: a Gaussian around `tanh` of the policy's columns, with one learned deviation for each column,
    within `exp(-5)` to `exp(2)`. Simulators explore with it while the run is fine-tuned.
 2. The critics have the form of the policy's hidden layers, and see what its body has encoded.

Deviations, on purpose:
 a. Discrete branches: Q(s, a) is the mean over branches of each branch's Q of its choice, as SAC has it here; log pi
    is the sum over branches and columns.
 b. All losses are taken at the same weights; in the paper's code V steps first, then the policy by the new V.
 c. The policy's learning rate is that of the critics; the paper lowers it by a cosine.

Stats are in `IQL.term_names`, guards in `off_policy`. Dimensions as in `worker.learning.networks.action_values`; `D`
branches, `M` choices of all branches, `H` columns of the policy's last layer.
"""

import copy
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ludus.collector.heads import HALF_LOG_TWO_PI
from ludus.config.network import NetworkSettings
from ludus.config.plugins.offline import FinetuneConfig, OfflineConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.demonstrations import DemonstrationBuffer
from worker.learning.algorithms.off_policy import Batch
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.imitation import cross_entropy
from worker.learning.networks.actor import Actor
from worker.learning.networks.encoder import Encoded
from worker.learning.networks.soft_actor_critic import CriticNetwork
from worker.learning.plugins.offline.learning import DemonstratedExperience, OfflineAlgorithm
from worker.learning.rewards.signals import SignalSet, title

LOG_SIGMA_LIMITS = (-5.0, 2.0)


class ImplicitActorCritic(nn.Module):
    """The policy with its deviations, two Q networks with their targets, and the value network."""

    def __init__(
        self, spec: BehaviorSpec, settings: NetworkSettings, signals: int, *, head: str, generator: torch.Generator
    ) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        super().__init__()
        columns, self._branches = spec.actions.continuous_size, spec.actions.discrete_branches
        self._signals, outputs = signals, max(spec.actions.mask_size, 1)
        self.actor = Actor(spec, settings, generator, head=head)
        self.log_sigma = nn.Parameter(torch.zeros(columns))
        self._q = [CriticNetwork(spec, settings, signals, outputs, generator, columns) for _ in range(2)]
        self._target = [copy.deepcopy(network).requires_grad_(requires_grad=False) for network in self._q]
        self.q, self.target = nn.ModuleList(self._q), nn.ModuleList(self._target)
        self.v = CriticNetwork(spec, settings, signals, 1, generator)

    def q_of(
        self, encoded: Encoded, continuous: Float[Tensor, "R C"], choices: Int[Tensor, "R D"], *, target: bool
    ) -> Float[Tensor, "2 R S"]:
        """Return Q of actions, by the networks or their targets; `choices` are counted over all branches."""
        extra = continuous if continuous.shape[1] else None
        networks = self._target if target else self._q
        joined: Tensor = torch.stack([network(network.encoding(encoded), extra, 1) for network in networks])
        outputs = joined.view(*joined.shape[:2], self._signals, -1)  # (2, R, S, K)
        if not self._branches:
            return outputs.squeeze(3)
        chosen = choices[None, :, None].expand(*outputs.shape[:3], -1)
        return outputs.gather(3, chosen).mean(3)

    def values(self, encoded: Encoded) -> Float[Tensor, "R S"]:
        """Return V."""
        values: Tensor = self.v(self.v.encoding(encoded), None, 1)
        return values

    def log_prob(self, head: Float[Tensor, "R H"], batch: Batch, first: Int[Tensor, " D"]) -> Float[Tensor, " R"]:
        """Return the log-probability of a batch's actions; `first` is where the choices of each branch begin."""
        parts, total = self.actor.parts(head), head.new_zeros(len(head))
        if len(self.log_sigma):
            log_sigma = self.log_sigma.clamp(*LOG_SIGMA_LIMITS)
            noise = (batch.continuous - parts.means) / log_sigma.exp()
            total = total - (0.5 * noise.square() + log_sigma + HALF_LOG_TWO_PI).sum(1)
        if self._branches:
            mean = cross_entropy(parts.logits, batch.choices - first, batch.masks, self._branches)
            total = total - mean * len(self._branches)
        return total

    @torch.no_grad()
    def track(self, tau: float) -> None:
        """Move the targets the part `tau` of their way."""
        sources = [parameter.detach() for parameter in self.q.parameters()]
        torch._foreach_lerp_(list(self.target.parameters()), sources, tau)


class IQL(OfflineAlgorithm):
    """Networks, optimizers and replay buffer of one behavior."""

    model: ImplicitActorCritic

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
        self.generator = torch.Generator().manual_seed(seed)
        self._build = partial(
            ImplicitActorCritic,
            spec,
            config.network_settings,
            len(signals),
            head=config.head,
            generator=self.generator,
        )
        self.model = model = self._build().to(device)
        self.actor = model.actor
        policy = [("log_sigma", model.log_sigma), *model.actor.named_parameters()]
        self.actor_optimizer = FlatAdam([item for item in policy if item[1].numel()])
        self.critic_optimizer = FlatAdam(
            [(f"q.{name}", part) for name, part in model.q.named_parameters()]
            + [(f"v.{name}", part) for name, part in model.v.named_parameters()]
        )
        norms = ("Losses/Policy Gradient Norm", "Losses/Critic Gradient Norm")
        values = (f"Policy/{title(name)} Value" for name in signals.names)
        self.term_names = (
            *("Losses/Policy Loss", norms[0], "Losses/Value Loss", norms[1]),
            *("Losses/Expectile Loss", "Policy/Advantage Weight", *values),
        )
        """Minus the weighted log-probability of actions, and the norm of its gradient; the mean of both Q networks'
        losses; the norm of the gradient of all critics; V's loss; the mean weight; the mean of V by signal."""
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
            },
            changed=model.target.parameters(),
        )
        self.set_noise()

    def log_sigma(self) -> Float[Tensor, " C"]:
        """Return the learned one."""
        return self.model.log_sigma.clamp(*LOG_SIGMA_LIMITS)

    def gradient_step(self, learning_rate: float) -> Float[Tensor, " terms"]:
        """Draw a batch and take one gradient step; return the terms of `term_names`."""
        batch, model, hyper = self.experience.batch(), self.model, self.config.hyperparameters
        following = model.values(batch.following)
        shown = model.q_of(batch.encoded, batch.continuous, batch.choices, target=True).amin(0)  # (R, S)
        targets = batch.rewards + batch.discounts * following
        self.critic_optimizer.zero_gradient()
        with torch.enable_grad():
            values = model.values(batch.encoded)
            expectile = torch.sum(expectile_loss(shown - values, hyper.expectile).mean(1) * batch.weight[:, 0])
            q = model.q_of(batch.encoded, batch.continuous, batch.choices, target=False)
            q_loss = torch.sum((q - targets).square().mean((0, 2)) * batch.weight[:, 0])
            torch.autograd.backward([expectile + q_loss])
        weights = advantage_weights((shown - values.detach()).mean(1), hyper.temperature, hyper.advantage_clip)
        self.actor_optimizer.zero_gradient()
        with torch.enable_grad():
            head, _ = model.actor(batch.encoded)
            log_prob = model.log_prob(head, batch, self.experience.first_choices)
            policy_loss = -torch.sum(weights * log_prob * batch.weight[:, 0])
            torch.autograd.backward([policy_loss])
        critic_norm = self.critic_optimizer.step(learning_rate)
        policy_norm = self.actor_optimizer.step(learning_rate)
        model.track(hyper.tau)
        mean_weight = torch.sum(weights * batch.weight[:, 0])
        mean_values = torch.sum(values.detach() * batch.weight, 0)
        terms = (policy_loss.detach(), policy_norm, q_loss.detach(), critic_norm, expectile.detach(), mean_weight)
        return torch.cat([torch.stack(terms), mean_values])


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return the asymmetric squares `|expectile - [u < 0]| u^2` of errors (equation 4)."""
    return (expectile - (errors < 0).float()).abs() * errors.square()


def advantage_weights(advantages: Tensor, temperature: float, clip: float) -> Tensor:
    """Return `exp(temperature * advantage)`, at most `clip`."""
    return (temperature * advantages).exp().clamp(max=clip)
