"""What an update learns from: the columns of a rollout on the learner's device, and shuffled minibatches of them."""
# ruff: noqa: F722  (shapes are written as jaxtyping reads them)

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Batch(NamedTuple):
    """Steps with their targets; row `i` of every column belongs to the same step. A minibatch is one, too."""

    encoded: Float[Tensor, "N O"]
    """Observations, joined and normalised by the statistics that acted."""
    continuous: Float[Tensor, "N C"]
    discrete: Int[Tensor, "N D"]
    masks: Bool[Tensor, "N M"] | None
    """None when every choice was allowed at every step."""
    log_prob: Float[Tensor, " N"]
    """Joint log-probability of the action by the policy that acted."""
    advantage: Float[Tensor, " N"]
    """Mean over signals, normalised over the whole rollout."""
    values: Float[Tensor, "N S"]
    """The critic's values before the update."""
    returns: Float[Tensor, "N S"]

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator["Batch"]:
        """Yield full minibatches of shuffled steps; what does not fill one is left out of this pass.

        A batch smaller than `size` is one minibatch. The order is drawn on the CPU, so it is the same on every device.
        All columns are permuted at once: a minibatch is then a view, and costs nothing.
        """
        order = torch.randperm(len(self.advantage), generator=generator).to(self.advantage.device)
        columns = [
            repeat(None) if column is None else torch.split(column.index_select(0, order), size) for column in self
        ]
        full = max(len(order) // size, 1)
        for _, *minibatch in zip(range(full), *columns, strict=False):
            yield Batch(*minibatch)
