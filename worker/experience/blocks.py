"""The learner's ledger of an arena: the owner of each block.

A block is free, owned by one collector (which writes it), or delivered (the learner reads it). A collector's death
returns what it owned; a delivered block stays with the learner until it is reclaimed.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

FREE = -1
DELIVERED = -2


class BlockLedger:
    """Free list and owners of an arena's blocks. Used under the lock of the collector pool."""

    def __init__(self, blocks: int) -> None:
        self._owners = np.full(blocks, FREE, np.int32)
        # Lowest ids on top, and last in first out: memory that was never touched stays untouched, hot blocks stay hot.
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that can be lent."""
        return len(self._free)

    def owned_by(self, owner: int) -> int:
        """Count the blocks that a collector owns."""
        return int((self._owners == owner).sum())

    def lend(self, owner: int, count: int) -> npt.NDArray[np.int32]:
        """Hand up to `count` free blocks to a collector (its index, >= 0)."""
        count = min(count, len(self._free))
        blocks = np.array(self._free[len(self._free) - count :], np.int32)
        del self._free[len(self._free) - count :]
        self._owners[blocks] = owner
        return blocks

    def deliver(self, owner: int, blocks: Iterable[int]) -> None:
        """Take over blocks that their collector has filled."""
        self._move(blocks, owner, DELIVERED)

    def reclaim(self, blocks: Iterable[int]) -> int:
        """Free delivered blocks and return how many there were."""
        moved = self._move(blocks, DELIVERED, FREE)
        self._free.extend(moved)
        return len(moved)

    def reclaim_from(self, owner: int) -> int:
        """Free everything that a dead collector owned and return how many blocks that were."""
        blocks = np.flatnonzero(self._owners == owner).tolist()
        self._free.extend(self._move(blocks, owner, FREE))
        return len(blocks)

    def _move(self, blocks: Iterable[int], before: int, after: int) -> list[int]:
        ids = list(blocks)
        wrong = [block for block in ids if self._owners[block] != before]
        if wrong:
            raise ValueError(
                f"blocks {wrong[:5]} belong to {[int(self._owners[b]) for b in wrong[:5]]}, not to {before}"
            )
        self._owners[ids] = after
        return ids
