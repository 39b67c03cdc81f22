"""Advantages and returns over ragged segments, all reward signals at once.

Generalized advantage estimation (Schulman et al. 2016, equation 16) for each signal `s` with its own discount:

    delta_t = r_t + gamma_s * V(t+1) - V(t)        A_t = delta_t + gamma_s * lambda * A_(t+1)

The recurrence stops at the end of each segment. The value `V(t+1)` there depends on how the segment ended:
0 where the episode was *terminated*, the value of the following observation where it was *truncated* or merely *cut*.
A signal that ignores termination (curiosity, RND: Burda et al. 2018, section 2.3) bootstraps everywhere; behind a
termination there is then the beginning of another episode (`beyond_termination`).

Steps that an older policy took are corrected by V-trace (Espeholt et al. 2018, equations 1 and 2, both limits 1). With
`rho_t = min(1, pi(a_t) / mu(a_t))`, where `pi` is the policy that is updated and `mu` the one that acted:

    A_t = rho_t * (delta_t + gamma_s * lambda * A_(t+1))

`A_t + V(t)` is then the paper's target `v_t`, and `A_t` its policy gradient's weight `rho_t (r_t + gamma v_(t+1) -
V(t))` with lambda also in that step. Where `pi` acted, `rho_t` is 1, and it is the recurrence above.

The reverse recurrence is solved by recursive doubling (Hillis & Steele 1986): `log2(longest segment)` passes over flat
tensors, whatever the number and the lengths of the segments. Nothing is padded.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from worker.learning.data_parallel import mean_over_ranks, total


def generalized_advantages(
    rewards: Float[Tensor, "N S"],
    values: Float[Tensor, "N S"],
    bootstrap: Float[Tensor, "B S"],
    lengths: Int[Tensor, " B"],
    terminated: Bool[Tensor, "B T"],
    *,
    gamma: Float[Tensor, " S"],
    lambd: float,
    importance: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "N S"]:
    """Return the advantage of each step for each signal; `advantages + values` are the returns.

    `importance` is V-trace's `rho` of each step; None: 1 everywhere.

    `bootstrap` holds the value of the observation after each segment's last step. `terminated` is true only where the
    episode really ended: never for a time limit, never for a segment that was cut, never for a signal that goes on
    beyond termination. Its `T` columns are those of the signals, or one for all. It may lie on the CPU, and so may
    `lengths`, whose largest value is waited for.
    """
    ends = (lengths.cumsum(0) - 1).to(values.device)  # (B,) the row of each segment's last step
    following = values.roll(-1, 0)  # (N, S) the last row of each segment is replaced at once
    following[ends] = torch.where(terminated.to(values.device), 0.0, bootstrap)
    deltas = rewards + gamma * following - values
    decay = (gamma * lambd).expand_as(deltas).clone()  # (N, S)
    decay[ends] = 0.0
    if importance is not None:
        deltas, decay = deltas * importance.unsqueeze(1), decay * importance.unsqueeze(1)
    return reverse_recurrence(deltas, decay, longest=int(lengths.max()))


def beyond_termination(
    bootstrap: Float[Tensor, "B S"],
    terminated: Bool[Tensor, " B"],
    beginnings: Float[Tensor, "E S"],
    ignores_termination: Bool[Tensor, " S"],
) -> Float[Tensor, "B S"]:
    """Return `bootstrap` with the mean value of `E` episodes' beginnings where a signal goes on beyond termination.

    The value of the terminal observation itself would do harm: no step begins there, so it is never learned, and what
    it is wrong by is what all values before it are pulled to, and it with them. Without beginnings nothing changes.
    """
    mean = mean_over_ranks(beginnings)  # (S,), NaN without beginnings
    replaced = terminated.to(bootstrap.device).unsqueeze(1) & ignores_termination & ~mean.isnan()  # (B, S)
    return torch.where(replaced, mean, bootstrap)


def reverse_recurrence(inputs: Float[Tensor, "N S"], decay: Float[Tensor, "N S"], longest: int) -> Float[Tensor, "N S"]:
    """Solve `x_t = inputs_t + decay_t * x_(t+1)` in `log2(longest)` passes.

    After the pass with stride `k`, `sums[t]` holds the first `2k` terms of its series and `decay[t]` the factor in
    front of the term `2k` steps ahead: 0 as soon as a segment's end lies between.
    """
    sums, stride = inputs, 1
    while stride < longest:
        head = slice(None, -stride)
        tail = slice(stride, None)
        sums = torch.cat((torch.addcmul(sums[head], decay[head], sums[tail]), sums[-stride:]))
        decay = torch.cat((decay[head] * decay[tail], decay[-stride:]))
        stride *= 2
    return sums


def normalized(
    advantages: Float[Tensor, " N"], epsilon: float = 1e-10, weights: Float[Tensor, " N"] | None = None
) -> Float[Tensor, " N"]:
    """Shift and scale to mean 0 and standard deviation 1 over the whole buffer, those of all ranks together.

    A constant becomes 0. With `weights` (V-trace's `rho`) each step counts by its weight in both.
    """
    if weights is not None:
        share = weights / total(weights.sum()).clamp(min=1e-20)
        centred = advantages - total(torch.dot(share, advantages))
        return centred / (total(torch.dot(share, centred.square())).sqrt() + epsilon)
    centred = advantages - mean_over_ranks(advantages)
    return centred / (mean_over_ranks(centred.square()).sqrt() + epsilon)


def explained_variance(predictions: Float[Tensor, "N S"], targets: Float[Tensor, "N S"]) -> Float[Tensor, ""]:
    """Return `1 - Var(targets - predictions) / Var(targets)`, the mean over signals; 0 where the targets are constant.

    1 is a perfect critic, 0 one that is as good as a constant, below 0 it is worse.
    """
    variance = targets.var(0, correction=0)
    residual = (targets - predictions).var(0, correction=0)
    return torch.where(variance > 0, 1.0 - residual / variance.clamp(min=1e-12), 0.0).mean()
