"""Log-probability and entropy of continuous, discrete and mixed actions.

Continuous columns are independent Gaussians whose `log_sigma` does not depend on the observation; each discrete branch
is a categorical distribution over its allowed choices. The log-probability of an action is the *joint* one, the sum
over columns and branches, and so is the entropy.

A forbidden choice has the logit -1e30, below any that a network gives: its probability is exactly 0 (ML-Agents' -1e8
could be topped by a diverging network). Where a row forbids every choice of a branch all count as equally likely.

Deviations from ML-Agents, on purpose: no `1e-7` inside logarithms (log-softmax needs none, and the term makes the
ratio of rare choices wrong); sums over columns and branches where ML-Agents keeps them apart (see `algorithms.ppo`).

`H` is the width of the head: the means of the `C` continuous columns, then the `M` logits of all branches.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ludus.collector.heads import FORBIDDEN, HALF_LOG_TWO_PI


class Branch(NamedTuple):
    """One categorical distribution for each row."""

    log_p: Float[Tensor, "B choices"]
    p: Float[Tensor, "B choices"]
    entropy: Float[Tensor, " B"]


class JointDistribution(NamedTuple):
    """The distribution at the actions taken, and what its derivatives by hand need (`fast.ppo`)."""

    log_prob: Float[Tensor, " B"]
    """Joint log-probability of each row's action."""
    entropy: Float[Tensor, " B"]
    """Joint entropy of each row's distribution, in nats."""
    z: Float[Tensor, "B C"]
    """`(action - mean) / sigma`."""
    inverse_sigma: Float[Tensor, " C"]
    discrete: Int[Tensor, "B D"]
    masks: Bool[Tensor, "B M"] | None
    branches: list[Branch]


def joint_distribution(
    head: Float[Tensor, "B H"],
    log_sigma: Float[Tensor, " C"],
    continuous: Float[Tensor, "B C"],
    discrete: Int[Tensor, "B D"],
    masks: Bool[Tensor, "B M"] | None,
    sizes: tuple[int, ...],
) -> JointDistribution:
    """Return log-probability and entropy of actions: `continuous` as sampled, before clipping; `sizes` of branches."""
    columns = continuous.shape[1]
    if columns:
        inverse_sigma = torch.exp(-log_sigma)
        z = (continuous - head[:, :columns]) * inverse_sigma
        spread = log_sigma.sum()
        log_prob = torch.sum(z * z, 1).mul_(-0.5).sub_(spread + columns * HALF_LOG_TWO_PI)
        entropy = (spread + columns * (HALF_LOG_TWO_PI + 0.5)).expand_as(log_prob)
    else:
        z, inverse_sigma = continuous, log_sigma  # both empty
        log_prob = entropy = head.new_zeros(())
    branches = branches_of(head[:, columns:], masks, sizes)
    for index, branch in enumerate(branches):
        log_prob = branch.log_p.gather(1, discrete[:, index : index + 1]).squeeze(1) + log_prob
        entropy = branch.entropy + entropy
    return JointDistribution(log_prob, entropy, z, inverse_sigma, discrete, masks, branches)


def branches_of(
    logits: Float[Tensor, "B M"], masks: Bool[Tensor, "B M"] | None, sizes: tuple[int, ...]
) -> list[Branch]:
    """Return the distribution of each branch, given the logits of all branches side by side."""
    branches = []
    for start, stop in branch_bounds(sizes):
        log_p = masked_logits(logits[:, start:stop], None if masks is None else masks[:, start:stop]).log_softmax(1)
        p = log_p.exp()
        branches.append(Branch(log_p, p, torch.sum(p * log_p, 1).neg_()))
    return branches


def gaussian_entropy(log_sigma: Float[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    """Return the entropy of each column in nats: `0.5 * ln(2 * pi * e * sigma^2)`."""
    return log_sigma + (HALF_LOG_TWO_PI + 0.5)


def masked_logits(logits: Float[Tensor, "B M"], masks: Bool[Tensor, "B M"] | None) -> Float[Tensor, "B M"]:
    """Replace the logits of forbidden choices (false in `masks`) by -1e30."""
    return logits if masks is None else logits.masked_fill(~masks, FORBIDDEN)


def branch_bounds(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return for each branch the first of its columns among all choices, and the one after its last."""
    bounds, start = [], 0
    for size in sizes:
        bounds.append((start, start + size))
        start += size
    return bounds
