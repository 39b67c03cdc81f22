"""Measurements of SAC's gradient steps: numeric checks, and metrics.

`Losses/Policy Loss`: minus the policy's soft value, which it descends.
`Losses/Q1 Loss`, `Losses/Q2 Loss`, `Losses/Value Loss`: half the squared error, mean over signals.
`Losses/Policy Gradient Norm`, `Losses/Critic Gradient Norm`: Euclidean; the critics' is over both Q networks and V.
`Policy/<Signal> Value`: mean of V over what was drawn.
`Policy/Entropy`: as ML-Agents counts it, the mean over columns of the entropy before tanh plus the sum over branches.
`Policy/Continuous Entropy`, `Policy/Discrete Entropy`: these two parts, `Policy/Branch <i> Entropy` each branch.
`Policy/Continuous Entropy Coeff`, `Policy/Discrete Entropy Coeff`: alpha of the columns, mean alpha of the branches.

All are means over the gradient steps of an update, in nats where they are entropies. A behavior without columns, or
without branches, has none of theirs. `S` signals, `E` coefficients: the branches', then the columns'.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from worker.learning.rewards.signals import title

TERMS = (
    "Losses/Policy Loss",
    "Losses/Value Loss",
    "Losses/Policy Gradient Norm",
    "Losses/Critic Gradient Norm",
    "Losses/Q1 Loss",
    "Losses/Q2 Loss",
)
"""Names of the first terms of each gradient step."""
GAUSSIAN_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)
"""Nats of a column whose sigma is 1."""


class SACTerms(NamedTuple):
    """Measurements of a gradient step, as tensors. `S` signals, `E` coefficients."""

    policy_loss: Float[Tensor, ""]
    value_loss: Float[Tensor, ""]
    q_losses: Float[Tensor, "2"]
    values: Float[Tensor, " S"]
    """Mean of V."""
    entropies: Float[Tensor, " E"]
    coefficients: Float[Tensor, " E"]
    log_sigma: Float[Tensor, ""] | None
    """Mean over columns; None without columns."""

    def joined(self, actor_norm: Float[Tensor, ""], critic_norm: Float[Tensor, ""]) -> Float[Tensor, " terms"]:
        """Return the numbers in the order of `Heads.names`, with the norms of both gradients."""
        first = torch.stack((self.policy_loss, self.value_loss, actor_norm, critic_norm))
        last = [] if self.log_sigma is None else [self.log_sigma.view(1)]
        return torch.cat([first, self.q_losses, self.values, self.entropies, self.coefficients, *last])


class Heads(NamedTuple):
    """The parts of a behavior, on which its statistics depend."""

    signals: tuple[str, ...]
    branches: int
    has_columns: bool

    @property
    def coefficients(self) -> int:
        """`E`."""
        return self.branches + self.has_columns

    @property
    def names(self) -> tuple[str, ...]:
        """The terms of a gradient step in their order: `TERMS`, values, entropies, coefficients, log sigma."""
        return (
            *TERMS,
            *(f"Policy/{title(name)} Value" for name in self.signals),
            *(f"entropy {index}" for index in range(self.coefficients)),
            *(f"coefficient {index}" for index in range(self.coefficients)),
            *(["log sigma"] if self.has_columns else []),
        )

    def metrics_of(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return metrics of the terms' means: entropies and coefficients get the names of metrics."""
        branches, coefficients = self.branches, self.coefficients
        entropies = [numbers.pop(f"entropy {index}") for index in range(coefficients)]
        alphas = [numbers.pop(f"coefficient {index}") for index in range(coefficients)]
        if branches:
            numbers["Policy/Discrete Entropy"] = sum(entropies[:branches])
            numbers["Policy/Discrete Entropy Coeff"] = sum(alphas[:branches]) / branches
        if branches > 1:
            numbers |= {f"Policy/Branch {index} Entropy": entropies[index] for index in range(branches)}
        if self.has_columns:
            numbers["Policy/Continuous Entropy"] = numbers.pop("log sigma") + GAUSSIAN_ENTROPY
            numbers["Policy/Continuous Entropy Coeff"] = alphas[-1]
        numbers["Policy/Entropy"] = numbers.get("Policy/Continuous Entropy", 0.0) + sum(entropies[:branches])
        return numbers
