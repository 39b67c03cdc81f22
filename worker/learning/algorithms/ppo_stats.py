"""Measurements of an update of PPO, copied from the device at once when the update is over."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from worker.learning.algorithms.batch import Batch
from worker.learning.algorithms.numeric_check import Diverged, NumericCheck
from worker.learning.functional.distributions import JointDistribution, gaussian_entropy
from worker.learning.functional.losses import approximate_kl, clip_fraction, mean_of_rows
from worker.learning.functional.returns import explained_variance
from worker.learning.rewards.signals import title


def _metric(name: str) -> Any:
    """Mark a field with the name of the metric it is."""
    return field(metadata={"metric": name})


@dataclass(frozen=True, slots=True)
class PPOStats:
    """Statistics of one update. Means are over its minibatches unless the field says otherwise."""

    policy_loss: float = _metric("Losses/Policy Loss")
    """The clipped surrogate that was minimised, with its sign: below 0 when likelier actions are better ones."""
    value_loss: float = _metric("Losses/Value Loss")
    """Squared error of the critic, before its coefficient of 0.5, mean over signals."""
    entropy: float = _metric("Policy/Entropy")
    """Entropy of the policy in nats: the mean over continuous columns plus the sum over discrete branches."""
    learning_rate: float = _metric("Policy/Learning Rate")
    """Adam's step size in this update, the actor's."""
    epsilon: float = _metric("Policy/Epsilon")
    """Clip range in this update."""
    beta: float = _metric("Policy/Beta")
    """Weight of the entropy in this update."""
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
    critic_learning_rate: float | None = _metric("Policy/Critic Learning Rate")
    """Adam's step size for the critic; None where it has none of its own."""
    others: Mapping[str, float] = field(default_factory=dict)
    """By metric name, what only some configurations have:

    `Policy/<Signal> Value Estimate`: mean value of the rollout's observations before the update.
    `Policy/<Signal> Reward`: mean, over the episodes that ended in the rollout, of the summed reward after strength;
        not for the extrinsic signal, whose episodes are measured where they are played, and not without an episode.
    `Policy/Continuous Entropy` (mean over columns), `Policy/Branch <i> Entropy`: where there are several of them.
    What signals and behavioral cloning measure (see there).
    """

    def metrics(self) -> dict[str, float]:
        """Return every field under its metric's name. ML-Agents' metrics have ML-Agents' names."""
        own = {entry.metadata["metric"]: getattr(self, entry.name) for entry in fields(self) if entry.metadata}
        return {**{name: value for name, value in own.items() if value is not None}, **self.others}


class Measured(NamedTuple):
    """Numbers of an update, copied from the device."""

    own: dict[str, float]
    """By field of `PPOStats`."""
    others: dict[str, float]
    """By metric name."""
    episodes: NDArray[np.float64]
    """(B, S): what each segment earned."""


FIELDS = {"policy loss": "policy_loss", "value loss": "value_loss", "gradient": "gradient_norm", "entropy": "entropy"}
"""Terms of the objective that are fields of `PPOStats`."""


class PolicyCheck(NumericCheck):
    """The terms of an update, and the log-ratio of every action in it."""

    def __init__(self) -> None:
        super().__init__()
        self._log_ratios: list[Tensor] = []
        self._real: list[Tensor] = []

    def add_policy(
        self, terms: Mapping[str, Float[Tensor, ""]], log_ratio: Float[Tensor, " N"], real: Bool[Tensor, " N"] | None
    ) -> None:
        """Note one minibatch; `real` tells steps from padding, None = all are steps."""
        self.add(terms)
        self._log_ratios.append(log_ratio)
        if real is not None:
            self._real.append(real)

    def conclude(
        self,
        batch: Batch,
        names: Sequence[str],
        epsilon: float,
        finite: Bool[Tensor, ""],
        episodes: Float[Tensor, "B S"],
    ) -> Measured | None:
        """Copy everything from the device, once. None if something was not finite or exploded.

        `names` are those of the signals, `finite` tells of all weights, `episodes` is what each segment earned.
        """
        log_ratios = torch.cat(self._log_ratios)
        real = torch.cat(self._real) if self._real else None
        kl = approximate_kl(log_ratios, real)  # not finite if any log-ratio is not
        estimates = [f"Policy/{title(name)} Value Estimate" for name in names]
        own = {
            "approximate_kl": kl,
            "clip_fraction": clip_fraction(log_ratios, epsilon, real),
            "explained_variance": explained_variance(batch.values, batch.returns),
        }
        terms = self.means()
        own |= {name: terms.pop(term) for term, name in FIELDS.items()}
        others = {**dict(zip(estimates, batch.values.mean(0).unbind(), strict=True)), **terms}
        valid = self.is_valid() & finite & kl.isfinite()
        scalars = torch.stack([valid.float(), *own.values(), *others.values()]).double()
        copied = torch.cat([scalars, episodes.reshape(-1)]).cpu().numpy()
        if not copied[0]:
            return None
        numbers = iter(copied[1:].tolist())
        return Measured(
            own={name: next(numbers) for name in own},
            others={name: next(numbers) for name in others},
            episodes=copied[len(scalars) :].reshape(episodes.shape),
        )

    def diagnosis(self) -> Diverged | None:
        """Return an error that names what was wrong first. Waits for the device."""
        ratios = [not bool(log_ratio.expm1().isfinite().all()) for log_ratio in self._log_ratios]
        terms = super().diagnosis()
        if not any(ratios) or (terms is not None and (terms.minibatch or 0) < ratios.index(True)):
            return terms
        return Diverged("ratio of probabilities", ratios.index(True))


def entropies(
    joint: JointDistribution, log_sigma: Float[Tensor, " C"], real: Bool[Tensor, " N"] | None
) -> dict[str, Float[Tensor, ""]]:
    """Return the policy's mean entropy as ML-Agents counts it and, where it has several heads, that of each head."""
    if len(joint.branches) + len(log_sigma) == 1:
        return {"entropy": mean_of_rows(joint.entropy, real)}
    heads = {
        f"Policy/Branch {index} Entropy": mean_of_rows(branch.entropy, real)
        for index, branch in enumerate(joint.branches)
    }
    if len(log_sigma):
        heads["Policy/Continuous Entropy"] = gaussian_entropy(log_sigma).mean()
    return {"entropy": torch.stack(list(heads.values())).sum(), **(heads if len(heads) > 1 else {})}
