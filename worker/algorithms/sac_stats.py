"""What SAC's gradient steps note: whether it makes sense, and the metrics of it.

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
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from worker.algorithms.bc import LOSS as PRETRAINING_LOSS
from worker.algorithms.guards import GROWTH, Diverged
from worker.rewards.signals import title

TERMS = (
    "Losses/Policy Loss",
    "Losses/Value Loss",
    "Losses/Policy Gradient Norm",
    "Losses/Critic Gradient Norm",
    "Losses/Q1 Loss",
    "Losses/Q2 Loss",
)
"""What each gradient step notes first."""


class Heads(NamedTuple):
    """What a behavior has, and so what is noted of it."""

    signals: tuple[str, ...]
    branches: int
    has_columns: bool

    @property
    def coefficients(self) -> int:
        """`E`."""
        return self.branches + self.has_columns

    @property
    def names(self) -> tuple[str, ...]:
        """The terms of a gradient step in their order: `TERMS`, values, entropies, coefficients, columns' entropy."""
        return (
            *TERMS,
            *(f"Policy/{title(name)} Value" for name in self.signals),
            *(f"entropy {index}" for index in range(self.coefficients)),
            *(f"coefficient {index}" for index in range(self.coefficients)),
            *(["Policy/Continuous Entropy"] if self.has_columns else []),
        )

    @property
    def terms(self) -> int:
        """How many there are."""
        return len(TERMS) + len(self.signals) + 2 * self.coefficients + self.has_columns


class Notes(NamedTuple):
    """The terms of an update: a row for each gradient step, on the device."""

    heads: Heads
    table: Float[Tensor, "steps terms"]

    @property
    def values(self) -> Float[Tensor, "steps S"]:
        """Sizes of the mean values."""
        return self.table[:, len(TERMS) : len(TERMS) + len(self.heads.signals)].abs()

    def are_sane(self, before: Float[Tensor, " S"]) -> Bool[Tensor, ""]:
        """Return whether all is finite, and no value a million times as large as `before` (or as 1). On the device.

        Values, because a loss may well grow that much when a large reward is drawn; V moves by small steps only.
        """
        return self.table.isfinite().all() & ~self._exploded(before).any()

    def diagnosis(self, before: Float[Tensor, " S"]) -> Diverged | None:
        """Return an error that names the first term that was wrong, None if none was. Waits for the device."""
        infinite = (~self.table.isfinite()).nonzero().tolist()
        if infinite:
            step, column = infinite[0]
            return Diverged(self.heads.names[column], step)
        exploded = self._exploded(before).nonzero().tolist()
        if exploded:
            step, signal = exploded[0]
            grown = (float(before[signal]), float(self.values[step, signal]))
            return Diverged(f"value of {self.heads.signals[signal]}", step, grown=grown)
        return None

    def metrics(self, imitation: list[Tensor], measured: list[dict[str, Tensor]]) -> dict[str, float]:
        """Return the means, with one copy from the device.

        `imitation` are the losses of behavioral cloning, `measured` what the reward signals say of their own steps.
        """
        parts: dict[str, Tensor] = {}
        if len(self.table):
            parts |= dict(zip(self.heads.names, self.table.mean(0).unbind(), strict=True))
        if imitation:
            parts[PRETRAINING_LOSS] = torch.stack(imitation).mean()
        for name in measured[0] if measured else ():
            parts[name] = torch.stack([one[name] for one in measured]).mean()
        numbers = dict(zip(parts, torch.stack(list(parts.values())).tolist(), strict=True))
        return self._named(numbers) if len(self.table) else numbers

    def _exploded(self, before: Float[Tensor, " S"]) -> Bool[Tensor, "steps S"]:
        return self.values > GROWTH * before.clamp(min=1.0)

    def _named(self, numbers: dict[str, float]) -> dict[str, float]:
        """Make metrics of what was noted of each coefficient."""
        branches, coefficients = self.heads.branches, self.heads.coefficients
        entropies = [numbers.pop(f"entropy {index}") for index in range(coefficients)]
        alphas = [numbers.pop(f"coefficient {index}") for index in range(coefficients)]
        if branches:
            numbers["Policy/Discrete Entropy"] = sum(entropies[:branches])
            numbers["Policy/Discrete Entropy Coeff"] = sum(alphas[:branches]) / branches
        if branches > 1:
            numbers |= {f"Policy/Branch {index} Entropy": entropies[index] for index in range(branches)}
        if self.heads.has_columns:
            numbers["Policy/Continuous Entropy Coeff"] = alphas[-1]
        numbers["Policy/Entropy"] = numbers.get("Policy/Continuous Entropy", 0.0) + sum(entropies[:branches])
        return numbers
