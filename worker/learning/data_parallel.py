"""Ranks: several processes that learn as one, in the way of `torch.distributed`'s programs.

Each rank has its own collectors, rollout and replay buffer, draws its own minibatches of `batch_size` rows, and
differentiates them. The ranks exchange, by all-reduce,

 1. gradients: an optimizer steps down their mean (`fast.adam`);
 2. statistics: of observations, advantages, returns, episodes, and what an update has measured;
 3. what all must decide alike: the number of minibatches, whether an update ends early or has diverged.

So weights and statistics are equal in all of them, and are those of one process that has the experience of all ranks
and takes minibatches that are as many times larger, but for

 1. the order in which floating-point sums are taken;
 2. the rows of a minibatch: each rank shuffles and draws among its own;
 3. means over minibatches that are not equally large: the mean over the ranks is one of means. So sequences of a rank
    that are shorter than another's weigh more per step (as in torch's DistributedDataParallel).

Only what happens in a `process_group` is exchanged; other updates of the same process are its own. The group is
torch's default one; `worker.trainer.ranks` makes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor


class ExchangeFailed(RuntimeError):
    """Another rank did not take part in an exchange within the group's time-out, or has ended."""


@dataclass
class Traffic:
    """What a rank has put into exchanges."""

    bytes: int = 0
    """Sizes of the tensors that were reduced or gathered, each counted once, whatever a backend makes of them."""


_TRAFFIC: ContextVar[Traffic | None] = ContextVar("traffic", default=None)
"""None outside of a group."""


@contextmanager
def process_group() -> Iterator[Traffic]:
    """Exchange what updates of this thread exchange meanwhile. All ranks of the group must do the same."""
    traffic = Traffic()
    token = _TRAFFIC.set(traffic)
    try:
        yield traffic
    finally:
        _TRAFFIC.reset(token)


def count_ranks() -> int:
    """Return how many ranks learn as one with this process; 1 outside of a group."""
    return 1 if _TRAFFIC.get() is None else dist.get_world_size()


def total(tensor: Tensor) -> Tensor:
    """Replace a tensor by its sum over all ranks, and return it. Raise `ExchangeFailed`, as all functions here do."""
    return _reduce(tensor, dist.ReduceOp.SUM)


def average(tensor: Tensor) -> Tensor:
    """Replace a tensor by its mean over all ranks, and return it."""
    return total(tensor) if _TRAFFIC.get() is None else total(tensor).div_(dist.get_world_size())


def least(number: int) -> int:
    """Return the smallest number that any rank has."""
    return number if _TRAFFIC.get() is None else int(_reduce(torch.tensor(number), dist.ReduceOp.MIN))


def mean_over_ranks(rows: Float[Tensor, "N ..."]) -> Float[Tensor, "..."]:
    """Return the mean over the rows of all ranks, of which some may have none; NaN without a row."""
    if _TRAFFIC.get() is None:
        return rows.mean(0)
    return total(rows.sum(0)) / total(torch.tensor(float(len(rows)), dtype=rows.dtype, device=rows.device))


def all_equal(number: int) -> bool:
    """Return whether all ranks have the same number."""
    return least(number) == number and -least(-number) == number


def _reduce(tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    traffic = _TRAFFIC.get()
    if traffic is not None:
        traffic.bytes += tensor.nbytes
        try:
            dist.all_reduce(tensor, operation)
        except RuntimeError as error:  # the one class of errors that gloo has; NCCL's is a subclass
            raise ExchangeFailed(str(error)) from error
    return tensor
