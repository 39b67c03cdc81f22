"""Steps of one behavior as columns.

Legend: T steps, B segments, C continuous actions, D discrete branches, K choices of all branches together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.protocol.batches import Array


@dataclass(frozen=True, slots=True)
class Steps:
    """T steps in B segments, each of consecutive steps of one agent; segments lie one behind the other."""

    observations: tuple[Array, ...]
    """One per ObservationSpec: (T, *shape), at which the agents acted."""
    successors: tuple[Array, ...]
    """One per ObservationSpec: (B, *shape), what followed each segment's last step."""
    lengths: NDArray[np.int64]
    """(B,)"""
    endings: Array
    """(B,): values of `ludus.collector.segments.SegmentEnd`."""
    rewards: Array
    """(T,): what followed the action, with the reward of the group."""
    continuous: Array
    """(T, C)"""
    discrete: Array
    """(T, D)"""
    log_probs: Array
    """(T, C + D): of each continuous column and each choice, when it was drawn."""
    action_masks: Array | None
    """(T, K), 1 = allowed; None: all choices were."""

    @property
    def count(self) -> int:
        """T."""
        return len(self.rewards)
