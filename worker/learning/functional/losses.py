"""The terms of the PPO objective (Schulman et al. 2017, equations 7 and 9), as scalars that autograd differentiates.

Each function returns the mean over the rows that count. `mask` is true for rows that count; None means all of them.
Padding changes neither a loss nor a derivative, whatever it holds (NaN, too).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped_surrogate(
    log_ratio: Float[Tensor, " B"],
    advantage: Float[Tensor, " B"],
    epsilon: float | Float[Tensor, ""],
    mask: Bool[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return `-mean(min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon) * A))`: to be minimised, may be negative.

    `log_ratio` is the log-probability under the learned policy minus the one under the policy that acted.
    """
    if mask is not None:  # before the product: NaN times a derivative of 0 is NaN
        log_ratio, advantage = torch.where(mask, log_ratio, 0.0), torch.where(mask, advantage, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)  # type: ignore[arg-type]  # both of one kind
    return mean_of_rows(torch.minimum(ratio * advantage, clipped * advantage), mask).neg()


def squared_error(
    values: Float[Tensor, "B S"], returns: Float[Tensor, "B S"], mask: Bool[Tensor, " B"] | None = None
) -> Float[Tensor, ""]:
    """Return `mean((R - V)^2)` over rows and signals."""
    error = values - returns
    if mask is not None:
        error = torch.where(mask.unsqueeze(1), error, 0.0)
    return mean_of_rows(error.square().mean(1), mask)


def clipped_value_loss(
    values: Float[Tensor, "B S"],
    old_values: Float[Tensor, "B S"],
    returns: Float[Tensor, "B S"],
    epsilon: float | Float[Tensor, ""],
    mask: Bool[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return `mean(max((R - V)^2, (R - V_clipped)^2))` over rows and signals; `V_clipped` stays near `old_values`.

    `old_values` are the critic's before the update, `V_clipped` lies within `epsilon` of them.
    """
    if mask is not None:
        values, old_values, returns = (
            torch.where(mask.unsqueeze(1), part, 0.0) for part in (values, old_values, returns)
        )
    moved = values - old_values
    clipped = old_values + moved.clamp(-epsilon, epsilon)  # type: ignore[arg-type]  # both of one kind
    # Inside the clip range both errors are V's, but rounding may make either the larger one: take V's itself there.
    inside = moved.abs() <= epsilon
    squares, clipped_squares = (values - returns).square(), (clipped - returns).square()
    larger = torch.where(inside, squares, torch.maximum(squares, clipped_squares))
    return mean_of_rows(larger.mean(1), mask)


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
