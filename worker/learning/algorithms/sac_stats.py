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

# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from worker.learning.algorithms.numeric_check import GROWTH, Diverged
from worker.learning.data_parallel import average
from worker.learning.rewards.signals import title

TERMS = (
    "Losses/Policy Loss",
    "Losses/Value Loss",
    "Losses/Policy Gradient Norm",
    "Losses/Critic Gradient Norm",
    "Losses/Q1 Loss",
    "Losses/Q2 Loss",
)
"""What each gradient step notes first."""
GAUSSIAN_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)
"""Nats of a column whose sigma is 1."""


class SACTerms(NamedTuple):
    """What a gradient step measures, as tensors. `S` signals, `E` coefficients."""

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
        """The terms of a gradient step in their order: `TERMS`, values, entropies, coefficients, log sigma."""
        return (
            *TERMS,
            *(f"Policy/{title(name)} Value" for name in self.signals),
            *(f"entropy {index}" for index in range(self.coefficients)),
            *(f"coefficient {index}" for index in range(self.coefficients)),
            *(["log sigma"] if self.has_columns else []),
        )


class Notes(NamedTuple):
    """The terms of an update, already copied from the device."""

    heads: Heads
    table: list[list[float]]
    """A row for each gradient step."""
    losses: Mapping[str, list[float]]
    """What behavioral cloning and the reward signals measured, by metric name: a number for each step of theirs."""

    @classmethod
    def copied(
        cls,
        heads: Heads,
        terms: list[Float[Tensor, " terms"]],
        losses: Mapping[str, list[Float[Tensor, ""]]],
        finite: list[Bool[Tensor, ""]],
    ) -> tuple["Notes", bool]:
        """Copy everything from the device at once, the mean over processes that share the steps.

        Return it, and whether all flags of `finite` are true in all processes.
        """
        others = [torch.stack(column) for column in (*losses.values(), finite) if column]
        flat = torch.cat([*terms, *others])
        average(flat)
        numbers = iter(flat.tolist())
        noted = cls(
            heads,
            [list(islice(numbers, len(row))) for row in terms],
            {name: list(islice(numbers, len(column))) for name, column in losses.items()},
        )
        return noted, all(flag == 1.0 for flag in numbers)

    def values(self) -> list[float]:
        """Return each signal's mean value over the gradient steps, its size; of none if there were none."""
        return [math.fsum(column) / len(self.table) for column in self._sizes()] if self.table else []

    def sizes(self) -> dict[str, float]:
        """Return the mean size of each of the `losses`."""
        return {name: math.fsum(map(abs, numbers)) / len(numbers) for name, numbers in self.losses.items()}

    def diagnosis(self, before: Sequence[float], losses_before: Mapping[str, float]) -> Diverged | None:
        """Return an error that names the first term that was wrong, None if all is well.

        Wrong is what is not finite, and what is a million times as large as `before` (or as 1): a value, or one of the
        `losses`, where a first one counts from what its first step measured. Values rather than the critics' losses,
        which may well grow that much when a large reward is drawn; V moves by small steps only. What cloning and the
        signals descend knows no rewards.
        """
        for step, row in enumerate(self.table):
            if not all(map(math.isfinite, row)):
                column = next(index for index, number in enumerate(row) if not math.isfinite(number))
                return Diverged(self.heads.names[column], step)
        for name, sizes, size in zip(self.heads.signals, self._sizes(), before, strict=True):
            for step, value in enumerate(sizes):
                if value > GROWTH * max(size, 1.0):
                    return Diverged(f"value of {name}", step, grown=(size, value))
        for name, numbers in self.losses.items():
            size = losses_before.get(name, abs(numbers[0]))
            for step, number in enumerate(numbers):
                if not math.isfinite(number):
                    return Diverged(name, step)
                if abs(number) > GROWTH * max(size, 1.0):
                    return Diverged(name, step, grown=(size, number))
        return None

    def metrics(self) -> dict[str, float]:
        """Return the means."""
        numbers = {name: math.fsum(column) / len(column) for name, column in self.losses.items()}
        if not self.table:
            return numbers
        means = [math.fsum(column) / len(self.table) for column in zip(*self.table, strict=True)]
        return self._named(dict(zip(self.heads.names, means, strict=True))) | numbers

    def _sizes(self) -> list[list[float]]:
        """Return each signal's values, their sizes."""
        first = len(TERMS)
        return [[abs(row[first + index]) for row in self.table] for index in range(len(self.heads.signals))]

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
            numbers["Policy/Continuous Entropy"] = numbers.pop("log sigma") + GAUSSIAN_ENTROPY
            numbers["Policy/Continuous Entropy Coeff"] = alphas[-1]
        numbers["Policy/Entropy"] = numbers.get("Policy/Continuous Entropy", 0.0) + sum(entropies[:branches])
        return numbers
