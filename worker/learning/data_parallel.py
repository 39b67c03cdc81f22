"""Several processes that learn as one: each takes its share of every minibatch, and the gradients are averaged.

All processes have the same networks, generators, rollout and replay buffer, and do the same; they differ only in which
rows of a minibatch they differentiate (`share` of a shuffled order, `own_rows` of what is drawn), and become equal
again before each step (`average`). So weights, statistics and the order of steps stay the same in all of them, and are
those of one process, but for

 1. the order in which floating-point sums are taken;
 2. minibatches that cannot be shared evenly: what is left is left out (`share`, `own_rows`), and of more processes than
    rows some take the same;
 3. padding, in PPO's and POCA's own losses: a share's mean is over its own steps, so that sequences of a share that are
    shorter than those of another weigh more per step. SAC, imitation (`mean_weights`) and reward signals (`shard`)
    are without this.

Only what happens in a `process_group` is shared; other updates of the same process are not.
The group is torch's default one; `worker.trainer.parallel` makes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_IN_GROUP = ContextVar("in_group", default=False)


@contextmanager
def process_group() -> Iterator[None]:
    """Share the updates of this thread meanwhile. All processes of the group must do the same."""
    token = _IN_GROUP.set(True)
    try:
        yield
    finally:
        _IN_GROUP.reset(token)


def share(order: Tensor, size: int) -> tuple[Tensor, int]:
    """Return this process's part of a shuffled order, and the size of its part of each minibatch.

    `order` is cut into minibatches of `size`, a remainder that fills none left out (one smaller minibatch if that is
    all there is); of each, every process takes as many, and a remainder of that is left out.
    """
    if not _IN_GROUP.get():
        return order, size
    size = min(size, len(order))
    places = _places(size)
    minibatches = order[: len(order) // size * size].view(-1, size)
    return minibatches[:, places].reshape(-1), places.stop - places.start


def own_rows(drawn: Tensor, length: int = 1) -> Tensor:
    """Return this process's part of what was drawn for a whole minibatch: of rows, or of sequences of `length` rows.

    All draw everything, so that their generators stay the same, and what is drawn that of one process. Every process
    takes as many, and a remainder is left out.
    """
    if not _IN_GROUP.get():
        return drawn
    places = _places(len(drawn) // length)
    return drawn[places.start * length : places.stop * length]


class Shard(NamedTuple):
    """The part of a minibatch that this process has; other processes may have more or fewer rows."""

    start: int
    rows: int
    total: int
    """Rows of all processes."""
    weight: float
    """On this process's mean: the mean over the processes is then that over all rows. 1 where all have as many."""

    def of(self, drawn: Tensor) -> Tensor:
        """Return this process's rows of what was drawn for the `total`."""
        return drawn[self.start : self.start + self.rows]


def shard(own: int) -> Shard:
    """Return where this process's `own` rows lie in the whole minibatch: behind those of the processes before it."""
    if not _IN_GROUP.get():
        return Shard(0, own, own, 1.0)
    counts = all_gather(torch.tensor(own))
    start, everyone = int(counts[: dist.get_rank()].sum()), int(counts.sum())
    return Shard(start, own, everyone, own * len(counts) / everyone)


def mean_weights(real: Tensor) -> Tensor:
    """Return the weight of each row in a mean over the rows that count, in all processes; 0 for padding.

    Where `average` takes the mean over the processes of what is summed with these weights, that is the mean over all
    rows, however much padding a share has.
    """
    count = real.sum().float()
    average(count)
    return real / count


def average(vector: Tensor) -> None:
    """Replace a vector by its mean over all processes."""
    if _IN_GROUP.get():
        total(vector)
        vector /= dist.get_world_size()


def total(vector: Tensor) -> None:
    """Replace a vector by its sum over all processes."""
    if _IN_GROUP.get():
        dist.all_reduce(vector)


def all_gather(value: Tensor) -> Tensor:
    """Return what every process has under `value`, one row for each; on the CPU."""
    rows = [torch.empty_like(value, device="cpu") for _ in range(dist.get_world_size())]
    dist.all_gather(rows, value.cpu())
    return torch.stack(rows)


def _places(size: int) -> slice:
    """Return which of the `size` rows or sequences of a minibatch are this process's."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    count = max(size // processes, 1)
    first = rank % size * count  # more processes than rows: some take the same
    return slice(first, first + count)
