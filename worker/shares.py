"""Several processes that learn as one: each takes its share of every minibatch, and the gradients are averaged.

All processes have the same networks, generators and rollout, and do the same; they differ only in which rows of a
minibatch they differentiate (`share`), and become equal again before each step (`average`). So weights, statistics and
the order of steps stay the same in all of them, and are those of one process, but for the order in which float32 sums
are taken, and for padding: sequences of a share that are shorter than those of another weigh more per step.

Only what happens `together` is shared: other updates of the same process, of an algorithm that learns alone, are not.
The group is torch's default one; `worker.trainer.parallel` makes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist
from torch import Tensor

_TOGETHER = ContextVar("together", default=False)


@contextmanager
def together() -> Iterator[None]:
    """Share the updates of this thread meanwhile. All processes of the group must do the same."""
    token = _TOGETHER.set(True)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def share(order: Tensor, size: int) -> tuple[Tensor, int]:
    """Return this process's part of a shuffled order, and the size of its part of each minibatch.

    `order` is cut into minibatches of `size`, a remainder that fills none left out (one smaller minibatch if that is
    all there is); of each, every process takes as many, and a remainder of that is left out.
    """
    if not _TOGETHER.get():
        return order, size
    rank, processes = dist.get_rank(), dist.get_world_size()
    size = min(size, len(order))
    own = max(size // processes, 1)
    minibatches = order[: len(order) // size * size].view(-1, size)
    return minibatches[:, rank % size * own : (rank % size + 1) * own].reshape(-1), own


def average(vector: Tensor) -> None:
    """Replace a vector by its mean over all processes."""
    if _TOGETHER.get():
        dist.all_reduce(vector)
        vector /= dist.get_world_size()


def everybody(value: Tensor) -> Tensor:
    """Return what every process has under `value`, one row for each; on the CPU."""
    rows = [torch.empty_like(value, device="cpu") for _ in range(dist.get_world_size())]
    dist.all_gather(rows, value.cpu())
    return torch.stack(rows)
