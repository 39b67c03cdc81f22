"""Soft values of a policy: what its actions are worth, and what their entropy adds (Haarnoja et al. 2018).

For an action of continuous columns and `D` discrete branches, with a coefficient `alpha` for each branch and one for
all columns together, the soft value of a state is

    V = Q - alpha_c log pi(a)                                         continuous only, a ~ pi
    V = mean over branches of sum_k p_k (q_k - alpha_b log p_k)       discrete: in expectation, nothing is sampled
    V = mean over branches of sum_k p_k (q_k(a) - alpha_b log p_k) - alpha_c log pi(a)           both

A critic gives one `q` for each choice of each branch; the value of an action is the mean over branches of those of its
choices. The policy ascends the same `V`.

Every derivative is in closed form, for one row and before any mean over rows. `K` is the number of a critic's outputs
for each signal: `max(M, 1)`.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import torch
from jaxtyping import Float, Int
from torch import Tensor

from worker.learning.functional.distributions import Branch


def joined_probabilities(branches: list[Branch]) -> Float[Tensor, "B M"]:
    """Return the probabilities of all choices of all branches, side by side."""
    return branches[0].p if len(branches) == 1 else torch.cat([branch.p for branch in branches], 1)


def expected_q(q: Float[Tensor, "nets B S K"], branches: list[Branch]) -> Float[Tensor, "nets B S"]:
    """Return what each critic expects of the policy's choices; without branches `K` is 1 and so is the choice."""
    if not branches:
        return q.squeeze(3)
    # Rows of one signal: (B, 1, M); the mean over branches of the sums over each is the sum over all, divided by D.
    return (q * joined_probabilities(branches).unsqueeze(1)).sum(3).mul_(1.0 / len(branches))


def expected_q_slope(branches: list[Branch], weight: Float[Tensor, "B 1"], signals: int) -> Float[Tensor, "B SK"]:
    """Return the derivative, by one critic's outputs, of `expected_q` in the mean over signals and over weighted rows.

    The outputs are signal after signal.
    """
    if not branches:
        return (weight * (1.0 / signals)).expand(-1, signals).clone()
    p = joined_probabilities(branches) * (weight * (1.0 / (len(branches) * signals)))
    return p if signals == 1 else p.repeat(1, signals)


def chosen_q(q: Float[Tensor, "nets B S K"], chosen: Int[Tensor, "B D"]) -> Float[Tensor, "nets B S"]:
    """Return what each critic says of the actions taken. `chosen` counts choices over all branches."""
    if not chosen.shape[1]:
        return q.squeeze(3)
    return q.gather(3, _spread(chosen, q)).mean(3)


def chosen_q_gradient(
    by_chosen: Float[Tensor, "nets B S"], chosen: Int[Tensor, "B D"], outputs: int
) -> Float[Tensor, "nets B S K"]:
    """Carry the derivative by `chosen_q` back to the critics' `outputs` for each signal."""
    by_chosen = by_chosen.unsqueeze(3)
    branches = chosen.shape[1]
    if not branches:
        return by_chosen
    by_q = by_chosen.new_zeros((*by_chosen.shape[:3], outputs))
    index = _spread(chosen, by_q)
    return by_q.scatter_(3, index, by_chosen.mul(1.0 / branches).expand(index.shape))


def _spread(chosen: Tensor, q: Tensor) -> Tensor:
    nets, rows, signals, _ = q.shape
    return chosen.view(1, rows, 1, -1).expand(nets, rows, signals, -1)


def branch_objective_gradient(
    branch: Branch, q: Float[Tensor, "B choices"], coefficient: Float[Tensor, ""]
) -> Float[Tensor, "B choices"]:
    """Return the derivative of `sum_k p_k (alpha log p_k - q_k)` by the logits: `p_k (x_k - sum_j p_j x_j)`.

    `x` is the bracket. The derivative of `log p` itself drops out, as the probabilities sum to 1. A forbidden choice
    has a probability of exactly 0 and gets none.
    """
    x = branch.log_p.mul(coefficient).sub_(q)
    return x.sub_((branch.p * x).sum(1, keepdim=True)).mul_(branch.p)
