"""The connection of a collector to the learner on its host: a Unix socket for frames, shared memory for the rest."""

import asyncio
from collections.abc import Callable, Sequence

from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena, unfreeze
from ludus.collector.carriers.connection import AdmittedMemory, LearnerConnection
from ludus.collector.channel import Channel, ChannelClosedError, Frame
from ludus.collector.commands import Admit, Weights
from ludus.collector.messages import Kind, pack_numbered
from ludus.collector.segments import Segments
from ludus.collector.weights import WeightBuffers, WeightsLayout


def map_memory(message: Admit, descriptors: Sequence[int]) -> tuple[Arena, WeightBuffers | None]:
    """Map the arena of an admitted behavior, and its weight buffers: None in an evaluation, whose policies' descriptors
    are left to the caller. The others are closed, the mappings stay.
    """
    arena = Arena(descriptors[0], message.arena)
    arena.close()
    if message.policy.evaluated:
        return arena, None
    (fd,) = descriptors[1:]
    weights = WeightBuffers(fd, WeightsLayout(message.policy.weights_size, message.weight_buffers))
    weights.close()
    return arena, weights


class LocalConnection(LearnerConnection):
    """Steps lie in blocks that the learner lends; a delivery names them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._take: Callable[[Sequence[Frame]], None] | None = None
        self._lost: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._weights: dict[int, WeightBuffers] = {}
        """By the number of the runner."""
        self._orphan = False
        self._flush_due = False
        """Whether what waits is sent at the end of this turn of the loop."""

    def begin(self, take: Callable[[Sequence[Frame]], None], lost: Callable[[], None]) -> None:
        """Read from the socket from now on."""
        self._take, self._lost = take, lost
        self._loop.add_reader(self._channel.fileno(), self.receive)

    def send(self, kind: Kind, payload: bytes, *, later: bool = False) -> None:
        """Send a frame. What is sent together wakes the learner once."""
        if self._orphan:
            return
        self._channel.send(kind, payload, later=True)
        if not later:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def receive(self) -> None:
        """Hand on the frames that have arrived."""
        assert self._take is not None, "nothing is read before `begin`"
        try:
            frames = self._channel.receive()
        except ChannelClosedError:
            self._orphaned()
        else:
            self._take(frames)

    def admitted(self, message: Admit, frame: Frame) -> AdmittedMemory:
        """Map the arena, and the weights: rotating buffers, or those of an evaluation's policies."""
        arena, weights = map_memory(message, frame.descriptors)
        if weights is None:
            return AdmittedMemory(arena, (), [unfreeze(fd) for fd in frame.descriptors[1:]])
        self._weights[message.runner] = weights
        return AdmittedMemory(arena, (), ())

    def weights(self, message: Weights, frame: Frame) -> FloatArray:
        """Copy a version out of its buffer."""
        del frame
        return self._weights[message.runner].read(message.index, message.version)

    def frozen_policy(self, frame: Frame) -> FloatArray:
        """Map the weights of a frozen policy."""
        (fd,) = frame.descriptors
        return unfreeze(fd)

    def deliver(self, runner: int, arena: Arena, segments: Segments) -> Sequence[int]:
        """Name the blocks, which are the learner's from now on."""
        del arena
        self.send(Kind.SEGMENTS, pack_numbered(runner, segments.pack()), later=True)
        return ()

    async def finish(self, seconds: float) -> None:
        """Send what waits."""
        deadline = self._loop.time() + seconds
        while self._channel.pending and not self._orphan and self._loop.time() < deadline:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """End the connection: the learner takes the blocks back."""
        self._orphan = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()

    def _flush(self) -> None:
        self._flush_due = False
        if self._orphan:
            return
        try:
            self._channel.flush()
        except ChannelClosedError:
            self._orphaned()
            return
        if self._channel.pending:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._channel.fileno())

    def _orphaned(self) -> None:
        self._orphan = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        if self._lost is not None:
            self._lost()
