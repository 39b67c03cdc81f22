"""Measurements of an update of PPO or POCA, copied from the device at once when the update is over.

Means are over its minibatches unless the line says otherwise. ML-Agents' metrics have ML-Agents' names.

`Losses/Policy Loss`: the clipped surrogate that was minimised, with its sign: below 0 when likelier actions are better.
`Losses/Value Loss`: squared error of the critic, before its coefficient of 0.5, mean over signals.
`Losses/Baseline Loss`: the same of POCA's baseline.
`Losses/Gradient Norm`: Euclidean norm of the gradient over all parameters, before it is clipped (if it is).
`Losses/Explained Variance`: 1 - Var(return - value) / Var(return) before the update: 1 is a perfect critic, 0 as good
    as a constant.
`Policy/Entropy`: entropy of the policy in nats: the mean over continuous columns plus the sum over discrete branches.
`Policy/Continuous Entropy` (mean over columns), `Policy/Branch <i> Entropy`: where there are several of them.
`Policy/Approximate KL`: KL(policy that acted || learned policy) in nats: `mean((ratio - 1) - log ratio)`, Schulman's
    (2020) k3.
`Policy/Clip Fraction`: share of actions whose ratio lay outside 1 - epsilon .. 1 + epsilon. In the decoupled objective
    both are about the policy before the update, instead of the one that acted.
`Policy/<Signal> Value Estimate`, `Policy/<Signal> Baseline Estimate` (POCA): mean over the rollout's steps before the
    update.
`Policy/Learning Rate`: Adam's step size in this update; `Policy/Critic Learning Rate`: the critic's, if it has its own.
`Policy/Epsilon`, `Policy/Beta`: clip range, and weight of the entropy, in this update.
`Policy/Acting KL`: KL(policy that acted || policy before the update) in nats, by k3 from the log-probabilities that
    collectors logged: the mean over those steps of the first minibatch that the policy before the update took itself.
    0 but for rounding, because they are one policy that two implementations compute. Not without such steps.
`Policy/Minibatches`: minibatches of this update; with `target_kl` only, which may end it early.
`Policy/Lag`: mean number of published versions between the policy that acted on a step and the one that is updated.
`Policy/Stale Share`: share of the rollout's steps that were too old to be learned from (`max_policy_lag`).
`Policy/<Signal> Reward`: mean, over the episodes that ended in the rollout, of the summed reward after strength; not
    without an episode, and of the extrinsic signal in POCA only: else its episodes are measured where they are played.

Signals and behavioral cloning add measurements of their own (see there).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from worker.learning.algorithms.batch import Batch
from worker.learning.algorithms.numeric_check import Diverged, NumericCheck
from worker.learning.data_parallel import average
from worker.learning.functional.distributions import JointDistribution, gaussian_entropy
from worker.learning.functional.losses import approximate_kl, clip_fraction, mean_of_rows
from worker.learning.functional.returns import explained_variance
from worker.learning.rewards.signals import title


class Measured(NamedTuple):
    """Numbers of an update, copied from the device."""

    metrics: dict[str, float]
    episodes: NDArray[np.float64]
    """(B, S): the sum of rewards of each segment."""


ACTING_KL = "Policy/Acting KL"
STALE_SHARE = "Policy/Stale Share"
METRICS = {
    "policy loss": "Losses/Policy Loss",
    "value loss": "Losses/Value Loss",
    "gradient": "Losses/Gradient Norm",
    "entropy": "Policy/Entropy",
}
"""Metrics of terms that have another name in errors."""


class PolicyCheck(NumericCheck):
    """The terms of an update, and the log-ratio of every action in it."""

    def __init__(self) -> None:
        super().__init__()
        self._log_ratios: list[Tensor] = []
        self._real: list[Tensor] = []
        self._acting_kl: Float[Tensor, ""] | None = None

    def add_acting(
        self, log_ratio: Float[Tensor, " N"], real: Bool[Tensor, " N"] | None, own: Bool[Tensor, " K"]
    ) -> None:
        """Measure `Policy/Acting KL` on a minibatch before which no weight has changed.

        `own` says which of its `K` steps the policy before the update took. Without such a step the KL is NaN.
        """
        log_ratio = log_ratio if real is None else log_ratio[real]
        self._acting_kl = torch.where(own.any(), approximate_kl(log_ratio, own), torch.nan)

    def add_policy(
        self, terms: Mapping[str, Float[Tensor, ""]], log_ratio: Float[Tensor, " N"], real: Bool[Tensor, " N"] | None
    ) -> None:
        """Add one minibatch; `real` tells steps from padding, None = all are steps."""
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
        """Copy everything from the device, once. None if something was not finite or exploded, in any rank.

        `names` are those of the signals, `finite` is about all weights, `episodes` is each segment's sum of rewards.
        """
        log_ratios = torch.cat(self._log_ratios)
        real = torch.cat(self._real) if self._real else None
        kl = approximate_kl(log_ratios, real)  # not finite if any log-ratio is not
        metrics = {METRICS.get(name, name): term for name, term in self.means().items()}
        metrics |= {
            "Policy/Approximate KL": kl,
            ACTING_KL: kl.new_tensor(torch.nan) if self._acting_kl is None else self._acting_kl,
            "Policy/Clip Fraction": clip_fraction(log_ratios, epsilon, real),
            "Losses/Explained Variance": explained_variance(batch.values, batch.returns),
        }
        metrics = dict(zip(value_estimates(names), batch.values.mean(0).unbind(), strict=True)) | metrics
        valid = self.is_valid() & finite & kl.isfinite()
        scalars = average(torch.stack([valid.float(), *metrics.values()]).double())
        copied = torch.cat([scalars, episodes.reshape(-1)]).cpu().numpy()
        if copied[0] < 1.0:
            return None
        numbers, sums = copied[1 : len(scalars)].tolist(), copied[len(scalars) :]
        measured = dict(zip(metrics, numbers, strict=True))
        if math.isnan(measured[ACTING_KL]):
            del measured[ACTING_KL]
        return Measured(measured, sums.reshape(episodes.shape))

    def diagnosis(self) -> Diverged | None:
        """Return an error that names the first wrong term. Waits for the device."""
        ratios = [not bool(log_ratio.expm1().isfinite().all()) for log_ratio in self._log_ratios]
        terms = super().diagnosis()
        if not any(ratios) or (terms is not None and (terms.minibatch or 0) < ratios.index(True)):
            return terms
        return Diverged("ratio of probabilities", ratios.index(True))


def value_estimates(names: Sequence[str]) -> list[str]:
    """Return the names of the metrics of mean values, one for each signal."""
    return [f"Policy/{title(name)} Value Estimate" for name in names]


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
