"""The terms of curiosity (ICM, Pathak et al. 2017, https://arxiv.org/abs/1705.05363) and of random network distillation
(RND, Burda et al. 2018, https://arxiv.org/abs/1810.12894): how wrong a prediction was.

Dimensions: `B` rows of a batch, `U` features, `C` continuous columns, `D` discrete branches, `M` choices of all
branches together.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from jaxtyping import Float, Int
from torch import Tensor

from worker.learning.functional.distributions import branch_bounds


def squared_distance(predicted: Float[Tensor, "B U"], actual: Float[Tensor, "B U"]) -> Float[Tensor, " B"]:
    """Return the squared Euclidean distance of each row."""
    return (predicted - actual).square().sum(1)


def action_error(
    predicted: Float[Tensor, "B H"],
    continuous: Float[Tensor, "B C"],
    discrete: Int[Tensor, "B D"],
    sizes: tuple[int, ...],
) -> Float[Tensor, " B"]:
    """Return how wrong each row's predicted action is: squared distance of the continuous columns, plus `-ln p(choice)`
    of each branch. The columns of `predicted` are the `C` actions, then the logits of all branches.
    """
    columns = continuous.shape[1]
    error = squared_distance(predicted[:, :columns], continuous)
    for index, (start, stop) in enumerate(branch_bounds(sizes)):
        logits = predicted[:, columns + start : columns + stop]
        error = error + F.cross_entropy(logits, discrete[:, index], reduction="none")
    return error


def flat_actions(
    continuous: Float[Tensor, "B C"], discrete: Int[Tensor, "B D"], sizes: tuple[int, ...]
) -> Float[Tensor, "B H"]:
    """Return actions as numbers: the continuous columns, then one column for each choice, 1 for the one taken."""
    rows, device = len(continuous), continuous.device
    # torch's `one_hot` reads the largest choice first; this waits for nothing.
    taken = [
        torch.zeros(rows, size, device=device, dtype=continuous.dtype).scatter_(1, discrete[:, index : index + 1], 1.0)
        for index, size in enumerate(sizes)
    ]
    return torch.cat([continuous, *taken], 1)
