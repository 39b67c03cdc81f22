"""Proximal policy optimization with a clipped surrogate (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Each update takes one rollout of the current policy and, for `num_epoch` passes over shuffled minibatches, descends

    -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A) + 0.5 * value loss - beta * entropy

Details, as in ML-Agents 1.1.0 (`ppo/optimizer_torch.py`, `trainer/on_policy_trainer.py`) unless marked:
 1. Advantages by GAE for each reward signal with its own gamma, averaged over signals, normalised over the rollout.
 2. The critic's loss is the squared error, coefficient 0.5 (see b).
 3. Adam over actor and critic together (betas 0.9 and 0.999, epsilon 1e-8); no early stop by KL. Gradients are clipped
    only where `max_grad_norm` (Ludus' own key) says so.
 4. Learning rate, epsilon and beta follow their schedules at the policy's step when the update begins.
 5. Shuffling is over steps; a remainder that fills no minibatch is left out of that pass.
 6. Observations are normalised once per update: the statistics do not change during it.

Deviations from ML-Agents, on purpose:
 a. The ratio is the one of the whole action: log-probabilities are *summed* over columns and branches, as in the paper.
    ML-Agents clips each column and branch by itself and takes the mean. With one column or branch that is the same;
    with more, its objective is no bound on the change of the policy. The entropy bonus is the joint entropy, so that
    the weight of `beta` against the surrogate stays what it is in ML-Agents. Measured on toys (mean of three seeds,
    same updates): where columns or branches must be right together the joint ratio is ahead (two branches, half-way:
    92 % against 89 %), where each is rewarded by itself it clips sooner and is behind (five branches: 96 against 98 %;
    squared distance to 8 and 20 targets: 0.038 against 0.031 and 0.136 against 0.111). No difference with one.
 b. ML-Agents means to clip values around those before the update by epsilon, but the returns overwrite the old values
    under the same key, so that what acts is the plain squared error (#6281), on which its users have tuned. It is the
    default here too; `clip_value_loss: true` (Ludus' own key) is the intention. Measured on CartPole (8 environments,
    buffer 1,024 and 2,048, two seeds each): plain 475 after 20,000 to 40,000 steps; clipped, whose critic moves by 0.2
    an update while returns are near 50, after 35,000 to more than 60,000.
 c. The normalizer merges a rollout *after* the update. The policy that is updated is then exactly the one that acted,
    and every ratio is 1 on the first minibatch. ML-Agents merges before, and starts with ratios that are not 1. Actor
    and critic share one normalizer, and it merges once also with `shared_critic`.
 d. No `1e-7` inside logarithms (see `functional.distributions`).
 e. `Losses/Policy Loss` keeps its sign; ML-Agents reports its absolute value.
 f. A rollout smaller than `batch_size` is learnt from as one minibatch; ML-Agents would silently skip it.
 g. An update that meets a value that is not finite is taken back as a whole and raises `Diverged`.

What it does not do: collect, count steps, write files, decide when to stop. Dimensions as in `worker.functional`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ludus.spec import BehaviorSpec
from server.training.config import PPOConfig
from worker.algorithms.batch import Batch
from worker.experience.rollout import Rollout
from worker.experience.segments import Ending
from worker.functional.distributions import gaussian_entropy
from worker.functional.losses import approximate_kl, clip_fraction, clipped_surrogate, clipped_value_loss, squared_error
from worker.functional.returns import explained_variance, generalized_advantages, normalized
from worker.functional.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule
from worker.networks.actor import Actor
from worker.networks.actor_critic import ActorCritic
from worker.networks.optimizer import FlatAdam

VALUE_COEFFICIENT = 0.5


def _metric(name: str) -> Any:
    """Mark a field with the name of the metric it is."""
    return field(metadata={"metric": name})


@dataclass(frozen=True, slots=True)
class PPOStats:
    """What one update did. Means are over its minibatches unless the field says otherwise."""

    policy_loss: float = _metric("Losses/Policy Loss")
    """The clipped surrogate that was minimised, with its sign: below 0 when likelier actions are better ones."""
    value_loss: float = _metric("Losses/Value Loss")
    """Squared error of the critic, before its coefficient of 0.5, mean over signals."""
    entropy: float = _metric("Policy/Entropy")
    """Entropy of the policy in nats: the mean over continuous columns plus the sum over discrete branches."""
    learning_rate: float = _metric("Policy/Learning Rate")
    """Adam's step size in this update."""
    epsilon: float = _metric("Policy/Epsilon")
    """Clip range in this update."""
    beta: float = _metric("Policy/Beta")
    """Weight of the entropy in this update."""
    extrinsic_value_estimate: float = _metric("Policy/Extrinsic Value Estimate")
    """Mean value of the rollout's observations before the update."""
    approximate_kl: float = _metric("Policy/Approximate KL")
    """KL(policy that acted || learned policy) in nats: `mean((ratio - 1) - log ratio)`, Schulman's (2020) k3."""
    clip_fraction: float = _metric("Policy/Clip Fraction")
    """Share of actions whose ratio lay outside 1 - epsilon .. 1 + epsilon."""
    explained_variance: float = _metric("Losses/Explained Variance")
    """1 - Var(return - value) / Var(return) before the update: 1 is a perfect critic, 0 as good as a constant."""
    gradient_norm: float = _metric("Losses/Gradient Norm")
    """Euclidean norm of the gradient over all parameters, before it is clipped (if it is)."""
    policy_lag: float = _metric("Policy/Lag")
    """Mean number of published versions between the policy that acted on a step and the one that is updated."""

    def metrics(self) -> dict[str, float]:
        """Return every field under its metric's name. ML-Agents' metrics have ML-Agents' names."""
        return {entry.metadata["metric"]: getattr(self, entry.name) for entry in fields(self)}


class Diverged(ArithmeticError):
    """An update met a value that is not finite. Weights, optimizer and normalizer are as before the update."""

    def __init__(self, tensor: str, minibatch: int | None = None) -> None:
        where = "" if minibatch is None else f" in minibatch {minibatch}"
        super().__init__(f"{tensor} is not finite{where}; the update was taken back")
        self.tensor = tensor
        """What was not finite first: `rewards`, `values`, `policy loss`, `gradient`, ..."""
        self.minibatch = minibatch
        """Index of the minibatch within the update, over all epochs; None if it was before the first one."""


class Rates(NamedTuple):
    """The scheduled numbers of one update."""

    learning_rate: float
    epsilon: float
    beta: float


class PPO:
    """Actor, critic and optimizer of one behavior."""

    version: int
    """How many updates the weights have seen: the version under which they are published."""

    def __init__(self, config: PPOConfig, spec: BehaviorSpec, device: torch.device, seed: int) -> None:
        """Raise `UnsupportedSpec` where there is no network for this behavior."""
        hyper = config.hyperparameters
        self.config, self.device, self.version = config, device, 0
        self._generator = torch.Generator().manual_seed(seed)
        self._model = ActorCritic(
            spec,
            config.network_settings,
            signals=1,
            shared_critic=hyper.shared_critic,
            generator=self._generator,
        )
        self._model.to(device)
        self._optimizer = FlatAdam(self._model.trained_parameters())
        self._gamma = torch.tensor([config.reward_signals.extrinsic.gamma], device=device)  # (S,)
        self._learning_rate = Schedule(
            hyper.learning_rate_schedule, hyper.learning_rate, LEARNING_RATE_FLOOR, config.max_steps
        )
        self._epsilon = Schedule(hyper.epsilon_schedule, hyper.epsilon, EPSILON_FLOOR, config.max_steps)
        self._beta = Schedule(hyper.beta_schedule, hyper.beta, BETA_FLOOR, config.max_steps)
        self._gradient_of = self._differentiate

    @property
    def actor(self) -> Actor:
        """The policy network, for exports."""
        return self._model.actor

    @torch.no_grad()
    def update(self, rollout: Rollout, step: int) -> PPOStats:
        """Improve the policy on one rollout; `step` is the policy's step, at which the schedules are read.

        Raise `Diverged`, with everything as before, if any value on the way is not finite.
        """
        rates = self.rates(step)
        batch, observations = self._prepare(rollout)
        before = self._optimizer.snapshot()
        trace = _Trace()
        for minibatch in self._minibatches(batch):
            terms, log_ratio = self._gradient_of(minibatch, rates)
            gradient_norm = self._optimizer.step(rates.learning_rate, self.config.hyperparameters.max_grad_norm)
            trace.add((*terms, gradient_norm), log_ratio, self.actor.log_sigma)
        if not trace.is_finite(self._optimizer):
            self._optimizer.restore(before)
            raise trace.diagnosis(batch)
        self.actor.body.update_normalizer(observations)
        self.version += 1
        return trace.stats(batch, rates, lag=self.version - 1 - rollout.versions.double().mean())

    def compile(self) -> None:
        """Let `torch.compile` fuse the operations: faster updates, after some 20 s once. Needs a C++ compiler."""
        self._gradient_of = torch.compile(self._differentiate)

    def rates(self, step: int) -> Rates:
        """Return what an update at `step` uses."""
        return Rates(self._learning_rate.at(step), self._epsilon.at(step), self._beta.at(step))

    def flat_weights(self) -> NDArray[np.float32]:
        """Return the actor's weights and normalizer statistics as collectors load them (see `networks.layout`)."""
        return self.actor.flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on. Tensors are copies."""
        return {
            "version": self.version,
            "generator": self._generator.get_state(),
            "model": {name: tensor.clone() for name, tensor in self._model.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())
        self.version = state["version"]

    def _prepare(self, rollout: Rollout) -> tuple[Batch, list[Tensor]]:
        """Return the batch with its targets, frozen for all epochs, and the raw observations for the normalizer."""
        observations = self._on_device(rollout.observations)
        encoded = self.actor.encode(observations)
        values, _ = self._model.values(encoded)
        bootstrap, _ = self._model.values(self.actor.encode(self._on_device(rollout.next_observations)))
        masks = rollout.action_masks
        advantages = generalized_advantages(
            self._rewards(rollout),
            values,
            bootstrap=bootstrap,
            lengths=rollout.lengths.to(self.device),
            terminated=(rollout.endings == Ending.TERMINATED).to(self.device),
            gamma=self._gamma,
            lambd=self.config.hyperparameters.lambd,
        )
        batch = Batch(
            encoded=encoded[0],
            continuous=rollout.continuous.to(self.device),
            discrete=rollout.discrete.to(self.device),
            masks=None if masks is None or bool(masks.all()) else masks.to(self.device),
            log_prob=rollout.log_probs.to(self.device).sum(1),
            advantage=normalized(advantages.mean(1)),
            values=values,
            returns=advantages + values,
        )
        return batch, observations

    def _on_device(self, observations: list[Tensor]) -> list[Tensor]:
        return [observation.to(self.device) for observation in observations]

    def _rewards(self, rollout: Rollout) -> Float[Tensor, "N S"]:
        """Return the reward of each signal after its strength. Extrinsic: the agent's own and its group's."""
        extrinsic = (rollout.rewards + rollout.group_rewards).to(self.device)
        return (extrinsic * self.config.reward_signals.extrinsic.strength).unsqueeze(1)

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        hyper = self.config.hyperparameters
        for _ in range(hyper.num_epoch):
            yield from batch.minibatches(hyper.batch_size, self._generator)

    def _differentiate(self, minibatch: Batch, rates: Rates) -> tuple[tuple[Tensor, ...], Float[Tensor, " B"]]:
        """Write the gradient of the objective on one minibatch to the weights' `grad`.

        Return the terms of the objective (policy loss, value loss, entropy) and the log-ratio of each action.
        """
        prediction = self._model.evaluate([minibatch.encoded], minibatch.continuous, minibatch.discrete, minibatch.masks)
        log_ratio = prediction.joint.log_prob - minibatch.log_prob
        policy = clipped_surrogate(log_ratio, minibatch.advantage, rates.epsilon)
        if self.config.hyperparameters.clip_value_loss:
            value = clipped_value_loss(prediction.values, minibatch.values, minibatch.returns, rates.epsilon)
        else:
            value = squared_error(prediction.values, minibatch.returns)
        self._model.backward(
            prediction,
            by_log_prob=policy.slope,
            by_entropy=-rates.beta / len(log_ratio),  # the objective has -beta * mean(entropy)
            by_values=value.slope.mul_(VALUE_COEFFICIENT),
        )
        return (policy.loss, value.loss, prediction.joint.entropy.mean()), log_ratio


class _Trace:
    """What happened in each minibatch, kept on the device until the update is over."""

    TERMS = ("policy loss", "value loss", "entropy", "gradient")

    def __init__(self) -> None:
        self._terms: list[Tensor] = []
        self._log_ratios: list[Tensor] = []
        self._log_sigmas: list[Tensor] = []

    def add(self, terms: tuple[Tensor, ...], log_ratio: Tensor, log_sigma: Tensor) -> None:
        """Note one minibatch: `terms` in the order of `TERMS`."""
        self._terms += terms
        self._log_ratios.append(log_ratio)
        if len(log_sigma) > 1:
            self._log_sigmas.append(log_sigma.clone())

    def is_finite(self, optimizer: FlatAdam) -> bool:
        """Return whether every term, every ratio and every weight is finite. Waits for the device."""
        seen = self._table().isfinite().all() & torch.cat(self._log_ratios).isfinite().all()
        return bool(seen & optimizer.all_finite())

    def diagnosis(self, batch: Batch) -> Diverged:
        """Return an error that names what was not finite first."""
        for name in ("encoded", "continuous", "log_prob", "values", "returns", "advantage"):
            if not getattr(batch, name).isfinite().all():
                return Diverged({"encoded": "observations"}.get(name, name.replace("_", "-")))
        for index, row in enumerate(self._table().isfinite().tolist()):
            for name, finite in zip(self.TERMS, row, strict=True):
                if not finite:
                    return Diverged(name, minibatch=index)
        return Diverged("weights", minibatch=len(self._log_ratios) - 1)

    def stats(self, batch: Batch, rates: Rates, lag: Tensor) -> PPOStats:
        """Return the statistics of the update, with one copy from the device."""
        log_ratios = torch.cat(self._log_ratios)
        policy_loss, value_loss, entropy, gradient_norm = self._table().mean(0)
        if self._log_sigmas:  # the joint entropy counts every column, the metric their mean
            columns = gaussian_entropy(torch.stack(self._log_sigmas)).mean(0)
            entropy = entropy - columns.sum() + columns.mean()
        measured = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "extrinsic_value_estimate": batch.values.mean(),
            "approximate_kl": approximate_kl(log_ratios),
            "clip_fraction": clip_fraction(log_ratios, rates.epsilon),
            "explained_variance": explained_variance(batch.values, batch.returns),
            "gradient_norm": gradient_norm,
            "policy_lag": lag.to(log_ratios),
        }
        numbers = dict(zip(measured, torch.stack(list(measured.values())).tolist(), strict=True))
        return PPOStats(**numbers, **rates._asdict())

    def _table(self) -> Float[Tensor, "minibatches 4"]:
        return torch.stack(self._terms).view(-1, len(self.TERMS))
