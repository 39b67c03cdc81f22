"""Published weights: rotating buffers in shared memory.

The learner writes a version into a buffer that is not read and sends the buffer's index over the control channel; a
collector copies it out and acknowledges. A collector is sent one index at a time (the newest, once it has acknowledged
the last one), so it holds at most one buffer: with one buffer more than collectors for the newest version and one to
write into, a buffer is always free. No side waits for the other, and no buffer is written while it may be read. The
version stamped before and after each buffer proves it.
"""

import mmap
import os
from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ludus.collector.arena import shared_memory

STAMP_BYTES = 64
"""The stamps lie in cache lines of their own."""


class TornReadError(RuntimeError):
    """A buffer changed while it was read: the protocol above was violated."""


@dataclass(frozen=True, slots=True)
class WeightsLayout:
    """Layout that both sides need to address the buffers."""

    size: int
    """float32 values in one version."""
    buffers: int

    @property
    def stride(self) -> int:
        """Bytes of one buffer with its stamps."""
        return 2 * STAMP_BYTES + -(-self.size * 4 // STAMP_BYTES) * STAMP_BYTES


class WeightBuffers:
    """The buffers, mapped into this process."""

    def __init__(self, fd: int, layout: WeightsLayout) -> None:
        self.fd = fd
        self.layout = layout
        memory = mmap.mmap(fd, layout.stride * layout.buffers)
        starts = [index * layout.stride for index in range(layout.buffers)]
        self._begun = [np.frombuffer(memory, np.int64, 1, start) for start in starts]
        self._weights = [np.frombuffer(memory, np.float32, layout.size, start + STAMP_BYTES) for start in starts]
        self._ended = [np.frombuffer(memory, np.int64, 1, start + layout.stride - STAMP_BYTES) for start in starts]
        self._readers: Counter[int] = Counter()
        self._newest = -1

    @classmethod
    def create(cls, size: int, collectors: int) -> Self:
        """Allocate buffers for weights of `size` values and that many collectors: at least three."""
        layout = WeightsLayout(size, max(3, collectors + 2))
        return cls(shared_memory("ludus-weights", layout.stride * layout.buffers), layout)

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def write(self, version: int, weights: npt.NDArray[np.float32]) -> int:
        """Learner: store a version in a buffer that no collector holds and return the buffer's index."""
        if weights.shape != (self.layout.size,):
            raise ValueError(f"weights have shape {weights.shape}, the policy takes ({self.layout.size},)")
        index = next(i for i in range(self.layout.buffers) if i != self._newest and not self._readers[i])
        self._begun[index][0] = version
        self._weights[index][:] = weights
        self._ended[index][0] = version
        self._newest = index
        return index

    def hold(self, index: int) -> None:
        """Learner: keep a buffer unchanged for a collector to which its index is about to be sent."""
        self._readers[index] += 1

    def release(self, index: int) -> None:
        """Learner: a collector that held the buffer has read it, or died."""
        self._readers[index] -= 1

    def read(self, index: int, version: int) -> npt.NDArray[np.float32]:
        """Collector: copy a version out of its buffer."""
        before = int(self._ended[index][0])
        weights = self._weights[index].copy()
        after = int(self._begun[index][0])
        if before != version or after != version:
            raise TornReadError(f"buffer {index} held versions {before} and {after} instead of {version}")
        return weights
