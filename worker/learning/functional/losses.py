"""The terms of the PPO objective (Schulman et al. 2017, equations 7 and 9) with their derivatives.

Each function returns the mean over the rows that count and the derivative of that mean with respect to its first
argument, in closed form: it is one line each, and a chain of tiny automatic derivatives costs more than the networks.
The tests hold them against automatic differentiation and against the plain formula.

`mask` is true for rows that count; None means all of them. Padding never changes a loss or a derivative.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Term(NamedTuple):
    """A term of an objective."""

    loss: Float[Tensor, ""]
    slope: Float[Tensor, "B ..."]
    """d loss / d first argument, in its shape."""


def clipped_surrogate(
    log_ratio: Float[Tensor, " B"],
    advantage: Float[Tensor, " B"],
    epsilon: float | Float[Tensor, ""],
    mask: Bool[Tensor, " B"] | None = None,
) -> Term:
    """Return `-mean(min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A))`: to be minimised, may be negative.

    `log_ratio` is the log-probability under the learned policy minus the one under the policy that acted.
    Slope, before the mean: `-ratio * A` where the unclipped product is not the larger one, else 0.
    """
    ratio = log_ratio.exp()
    plain = ratio * advantage
    clipped = ratio.clamp_(1.0 - epsilon, 1.0 + epsilon).mul_(advantage)  # type: ignore[arg-type]  # both of one kind
    slope = torch.where(plain <= clipped, plain, 0.0)  # d ratio / d log_ratio = ratio
    return _mean(torch.minimum(plain, clipped).neg_(), slope.neg_(), mask)


def squared_error(
    values: Float[Tensor, "B S"], returns: Float[Tensor, "B S"], mask: Bool[Tensor, " B"] | None = None
) -> Term:
    """Return `mean((R - V)^2)` over rows and signals. Slope, before the mean: `2 (V - R)`."""
    error = values - returns
    return _mean(error.square(), error.mul_(2.0), mask)


def clipped_value_loss(
    values: Float[Tensor, "B S"],
    old_values: Float[Tensor, "B S"],
    returns: Float[Tensor, "B S"],
    epsilon: float | Float[Tensor, ""],
    mask: Bool[Tensor, " B"] | None = None,
) -> Term:
    """Return `mean(max((R - V)^2, (R - V_clipped)^2))` over rows and signals; `V_clipped` stays near `old_values`.

    `old_values` are the critic's before the update, `V_clipped` lies within `epsilon` of them.
    Slope, before the mean: `2 (V - R)` where the unclipped error is not the smaller one, else 0.
    """
    error = values - returns
    plain = error.square()
    moved = (values - old_values).clamp_(-epsilon, epsilon)  # type: ignore[arg-type]  # both of one kind
    clipped = moved.add_(old_values).sub_(returns).square_()
    # Inside the clip range both errors are V's, but rounding may make either the larger one: compare the step itself.
    inside = (values - old_values).abs_() <= epsilon
    slope = torch.where(inside | (plain >= clipped), error, 0.0).mul_(2.0)
    return _mean(torch.maximum(plain, clipped), slope, mask)


def _mean(terms: Float[Tensor, "B ..."], slope: Float[Tensor, "B ..."], mask: Bool[Tensor, " B"] | None) -> Term:
    """Return the mean of the rows that count, and its slope given that of each row's term."""
    if mask is None:
        return Term(terms.mean(), slope.mul_(1.0 / terms.numel()))
    weight = row_weights(mask)
    weight = weight.view(-1, *[1] * (terms.dim() - 1)) / (terms.numel() // len(mask))
    return Term((torch.where(weight > 0, terms, 0.0) * weight).sum(), torch.where(weight > 0, slope, 0.0) * weight)


def row_weights(mask: Bool[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the weight of each row in a mean over the rows that count: `1 / count`, or 0. All 0 if none counts."""
    return mask / mask.sum().clamp(min=1)


def mean_of_rows(values: Float[Tensor, " B"], mask: Bool[Tensor, " B"] | None = None) -> Float[Tensor, ""]:
    """Return the mean of the rows that count."""
    return values.mean() if mask is None else (torch.where(mask, values, 0.0) * row_weights(mask)).sum()


def approximate_kl(log_ratio: Float[Tensor, " N"], mask: Bool[Tensor, " N"] | None = None) -> Float[Tensor, ""]:
    """Estimate KL(acting policy || learned policy) in nats by `mean((ratio - 1) - log_ratio)`.

    Unbiased, never negative, of low variance (Schulman 2020, "Approximating KL divergence", estimator k3).
    """
    return mean_of_rows(log_ratio.expm1() - log_ratio, mask)


def clip_fraction(
    log_ratio: Float[Tensor, " N"], epsilon: float, mask: Bool[Tensor, " N"] | None = None
) -> Float[Tensor, ""]:
    """Return the share of actions whose ratio lies outside `1 - epsilon .. 1 + epsilon`."""
    return mean_of_rows((log_ratio.expm1().abs() > epsilon).to(log_ratio.dtype), mask)
