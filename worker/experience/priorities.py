"""Proportional priorities of the steps of a replay buffer (Schaul et al. 2016, section 3.3 and appendix B.2.1).

Row `i` is drawn with the probability `p_i^alpha / sum_k p_k^alpha`. A sum tree holds the powers: each node is the sum
of its two children, so that drawing and changing take `log2(capacity)` steps, for all rows of a batch at once.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from worker.experience.state import State

SMALLEST = 1e-6
"""Added to each error, so that every step keeps a chance (`epsilon` of the paper)."""
LARGEST = 1e30
"""Upper limit of an error."""


class Priorities:
    """The priorities of `capacity` rows; those that were never added have none and are never drawn."""

    def __init__(self, capacity: int, exponent: float) -> None:
        """`exponent`: `alpha`; 0 draws uniformly."""
        self._exponent = exponent
        self._first = 1 << max(capacity - 1, 0).bit_length()
        """Index of row 0 in the tree; node `i` has the children `2 i` and `2 i + 1`, the root is node 1."""
        self._tree = np.zeros(2 * self._first)
        self._capacity = capacity
        self._largest = 1.0
        """The largest priority so far: that of new steps, so that each is drawn once soon."""
        self._changes: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        """Rows and what they were before, since the last snapshot."""

    def add(self, rows: NDArray[np.int64]) -> None:
        """Give rows with new steps the largest priority."""
        self._set(rows, np.full(len(rows), self._largest**self._exponent))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Int[Tensor, " Q"], Float[Tensor, " Q"]]:
        """Draw rows, one from each of `count` equal parts of the sum; return them with their probabilities."""
        parts = np.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64).numpy()
        targets = parts * (self._tree[1] / count)
        nodes = np.ones(count, np.int64)
        while nodes[0] < self._first:
            left_sums = self._tree[2 * nodes]
            goes_right = (targets >= left_sums) & (self._tree[2 * nodes + 1] > 0.0)
            targets -= np.where(goes_right, left_sums, 0.0)
            nodes = 2 * nodes + goes_right
        return torch.from_numpy(nodes - self._first), torch.from_numpy(self._tree[nodes] / self._tree[1]).float()

    def update(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Set the priorities of rows to the sizes of their errors."""
        # An error that is not finite must not destroy the sums before the update is taken back.
        priorities = np.nan_to_num(np.abs(errors.astype(np.float64)), nan=0.0, posinf=LARGEST) + SMALLEST
        self._changes.append((rows, self._tree[self._first + rows]))
        self._set(rows, priorities**self._exponent)
        self._largest = max(self._largest, float(priorities.max()))

    def snapshot(self) -> float:
        """Begin to record changes; return the largest priority, which `restore` needs too."""
        self._changes.clear()
        return self._largest

    def restore(self, snapshot: float) -> None:
        """Go back to a snapshot."""
        for rows, values in reversed(self._changes):
            self._set(rows, values)
        self._changes.clear()
        self._largest = snapshot

    def state_dict(self) -> State:
        """Return everything, as copies."""
        leaves = self._tree[self._first : self._first + self._capacity]
        return {"largest": self._largest, "powers": torch.from_numpy(leaves.copy())}

    def load_state_dict(self, state: State | None, count: int) -> None:
        """Go on exactly where `state_dict` was taken; `count` rows of the buffer hold steps.

        Without a state all rows get the largest priority, and so they do where the buffer had another capacity: its
        rows were others.
        """
        self._tree[:] = 0.0
        if state is not None:
            self._largest = state["largest"]
        if state is not None and len(state["powers"]) == self._capacity:
            self._set(np.arange(count), state["powers"].numpy()[:count])
        else:
            self.add(np.arange(count))

    def _set(self, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write leaves, and the sums above them."""
        nodes = self._first + rows
        self._tree[nodes] = values
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._tree[nodes] = self._tree[2 * nodes] + self._tree[2 * nodes + 1]
