"""Soft values of a policy: the value of its actions plus the bonus of their entropy (Haarnoja et al. 2018).

For an action of continuous columns and `D` discrete branches, with a coefficient `alpha` for each branch and one for
all columns together, the soft value of a state is

    V = Q - alpha_c log pi(a)                                         continuous only, a ~ pi
    V = mean over branches of sum_k p_k (q_k - alpha_b log p_k)       discrete: in expectation, nothing is sampled
    V = mean over branches of sum_k p_k (q_k(a) - alpha_b log p_k) - alpha_c log pi(a)           both

A critic gives one `q` for each choice of each branch; the value of an action is the mean over branches of those of its
choices. The policy ascends the same `V`.

`K` is the number of a critic's outputs for each signal: `max(M, 1)`.
"""

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


def chosen_q(q: Float[Tensor, "nets B S K"], chosen: Int[Tensor, "B D"]) -> Float[Tensor, "nets B S"]:
    """Return what each critic says of the actions taken. `chosen` counts choices over all branches."""
    if not chosen.shape[1]:
        return q.squeeze(3)
    return q.gather(3, spread(chosen, q)).mean(3)


def spread(chosen: Tensor, q: Tensor) -> Tensor:
    """Return the index of the chosen outputs for `gather` along the outputs of `q`, (nets, B, S, K)."""
    nets, rows, signals, _ = q.shape
    return chosen.view(1, rows, 1, -1).expand(nets, rows, signals, -1)
