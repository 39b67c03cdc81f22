"""The terms of behavioral cloning: how far a policy's actions are from demonstrated ones, row by row.

Dimensions: `R` rows of a minibatch, others as in `worker.learning.functional`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ludus.collector.heads import LIMIT
from worker.learning.functional.distributions import branch_bounds, masked_logits


def continuous_error(
    means: Float[Tensor, "R C"],
    log_sigmas: Float[Tensor, "R C"],
    expert: Float[Tensor, "R C"],
    noise: Float[Tensor, "R C"] | None,
) -> Float[Tensor, " R"]:
    """Return the (expected) squared error of the action that the environment gets, mean over columns.

    `noise` is standard normal for a squashed policy's sample; None takes the expectation of one that is not squashed.
    """
    sigma = log_sigmas.exp()
    if noise is None:
        error = (means / LIMIT - expert).square() + (sigma / LIMIT).square()
    else:
        error = ((means + sigma * noise).tanh() - expert).square()
    return error.mean(1)


def cross_entropy(
    logits: Float[Tensor, "R M"],
    expert: Int[Tensor, "R D"],
    masks: Bool[Tensor, "R M"] | None,
    sizes: tuple[int, ...],
) -> Float[Tensor, " R"]:
    """Return minus the log-probability of the shown choices, mean over branches."""
    masked = masked_logits(logits, masks)
    log_probs = [
        masked[:, start:stop].log_softmax(1).gather(1, expert[:, branch : branch + 1])
        for branch, (start, stop) in enumerate(branch_bounds(sizes))
    ]
    return -torch.cat(log_probs, 1).mean(1)
