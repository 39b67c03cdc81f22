"""Advantages and returns over ragged segments, all reward signals at once.

Generalized advantage estimation (Schulman et al. 2016, equation 16) for each signal `s` with its own discount:

    delta_t = r_t + gamma_s * V(t+1) - V(t)        A_t = delta_t + gamma_s * lambda * A_(t+1)

The recurrence stops at the end of each segment. The value `V(t+1)` there depends on how the segment ended:
0 where the episode was *terminated*, the value of the following observation where it was *truncated* or merely *cut*.
A signal that ignores termination (curiosity, RND: Burda et al. 2018, section 2.3) bootstraps everywhere; behind a
termination there is then the beginning of another episode (`beyond_termination`).

The reverse recurrence is solved by recursive doubling (Hillis & Steele 1986): `log2(longest segment)` passes over flat
tensors, whatever the number and the lengths of the segments. Nothing is padded.
"""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def generalized_advantages(
    rewards: Float[Tensor, "N S"],
    values: Float[Tensor, "N S"],
    bootstrap: Float[Tensor, "B S"],
    lengths: Int[Tensor, " B"],
    terminated: Bool[Tensor, " B"],
    *,
    gamma: Float[Tensor, " S"],
    lambd: float,
    ignores_termination: Bool[Tensor, " S"] | None = None,
) -> Float[Tensor, "N S"]:
    """Return the advantage of each step for each signal; `advantages + values` are the returns.

    `bootstrap` holds the value of the observation after each segment's last step. `terminated` is true only where the
    episode really ended: never for a time limit, never for a segment that was cut. Both it and `lengths` may lie on
    the CPU, where rollouts come from; `lengths` should, since its largest value is waited for.
    """
    ends = (lengths.cumsum(0) - 1).to(values.device)  # (B,) the row of each segment's last step
    alive = ~terminated.to(values.device).unsqueeze(1)  # (B, 1)
    if ignores_termination is not None:
        alive = alive | ignores_termination.unsqueeze(0)  # (B, S)
    following = values.roll(-1, 0)  # (N, S) the last row of each segment is replaced at once
    following[ends] = torch.where(alive, bootstrap, 0.0)
    deltas = rewards + gamma * following - values
    decay = (gamma * lambd).expand_as(deltas).clone()  # (N, S)
    decay[ends] = 0.0
    return _reverse_recurrence(deltas, decay, longest=int(lengths.max()))


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
    if not len(beginnings):
        return bootstrap
    replaced = terminated.to(bootstrap.device).unsqueeze(1) & ignores_termination  # (B, S)
    return torch.where(replaced, beginnings.mean(0), bootstrap)


def _reverse_recurrence(
    inputs: Float[Tensor, "N S"], decay: Float[Tensor, "N S"], longest: int
) -> Float[Tensor, "N S"]:
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


def normalized(advantages: Float[Tensor, " N"], epsilon: float = 1e-10) -> Float[Tensor, " N"]:
    """Shift and scale to mean 0 and standard deviation 1 over the whole buffer. A constant becomes 0."""
    centred = advantages - advantages.mean()
    return centred / (centred.square().mean().sqrt() + epsilon)


def explained_variance(predictions: Float[Tensor, "N S"], targets: Float[Tensor, "N S"]) -> Float[Tensor, ""]:
    """Return `1 - Var(targets - predictions) / Var(targets)`, the mean over signals; 0 where the targets are constant.

    1 is a perfect critic, 0 one that is as good as a constant, below 0 it is worse.
    """
    variance = targets.var(0, correction=0)
    residual = (targets - predictions).var(0, correction=0)
    return torch.where(variance > 0, 1.0 - residual / variance.clamp(min=1e-12), 0.0).mean()
