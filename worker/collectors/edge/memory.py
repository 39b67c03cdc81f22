"""The learner's memory in the edge reader: each behavior's arena and weights, mapped once for all places."""

import os
from collections.abc import Sequence

from ludus.collector import commands
from ludus.collector.arena import Arena
from ludus.collector.weights import WeightBuffers, WeightsLayout


class BehaviorMemory:
    """The memory of a behavior. The descriptors are closed at once, the mapping stays."""

    def __init__(self, message: commands.Admit, descriptors: Sequence[int]) -> None:
        arena_fd, *weights_fds = descriptors
        self.arena = Arena(arena_fd, message.arena)
        self.arena.close()
        self._weights: WeightBuffers | None = None
        """None for a behavior that does not learn."""
        if not message.policy.evaluated:
            (weights_fd,) = weights_fds
            layout = WeightsLayout(message.policy.weights_size, message.weight_buffers)
            self._weights = WeightBuffers(weights_fd, layout)
            self._weights.close()
        self._newest = (-1, b"")
        """The version that was read last, and its bytes."""

    def weights(self, message: commands.Weights) -> bytes:
        """Return the bytes of a version that lies in a buffer. Places that send the same one share them."""
        assert self._weights is not None, "weights are published for behaviors that learn"
        if self._newest[0] != message.version:
            self._newest = message.version, self._weights.read(message.index, message.version).tobytes()
        return self._newest[1]


class AttemptMemory:
    """The memory of all behaviors of an attempt."""

    def __init__(self) -> None:
        self._behaviors: dict[int, BehaviorMemory] = {}
        """By runner: a runner keeps its memory for as long as the attempt lasts."""

    def __len__(self) -> int:
        """Return how many behaviors are mapped."""
        return len(self._behaviors)

    def of(self, message: commands.Admit, descriptors: Sequence[int]) -> BehaviorMemory:
        """Return the memory of an admitted behavior; descriptors of memory that is mapped already are closed.

        Those of the policies of an evaluation are left to the caller.
        """
        known = self._behaviors.get(message.runner)
        if known is None:
            known = self._behaviors[message.runner] = BehaviorMemory(message, descriptors)
        else:
            for fd in descriptors if not message.policy.evaluated else descriptors[:1]:
                os.close(fd)
        return known
