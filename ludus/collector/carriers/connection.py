"""A collector's end of the connection to its learner: what both kinds of it have in common.

A collector on the learner's host shares memory with it (`carriers.local`), one beside the games sends the same over a
stream (`carriers.stream`). Nothing else in a collector knows which of the two it has.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena
from ludus.collector.channel import Frame
from ludus.collector.commands import Admit, Weights
from ludus.collector.messages import Kind, Message
from ludus.collector.segments import Segments


@dataclass(frozen=True, slots=True)
class AdmittedMemory:
    """The memory of an admitted behavior."""

    arena: Arena
    blocks: Sequence[int]
    """Blocks that may be written at once; the learner lends others later (`Kind.BLOCKS`)."""
    evaluated: Sequence[FloatArray]
    """The weights of each policy of an evaluation; empty for a behavior that learns."""


class LearnerConnection(ABC):
    """Used in the event loop only. Nothing waits: what can't be sent at once is queued."""

    waiting = 0
    """Bytes that wait for the network, where there is one."""

    @abstractmethod
    def begin(self, take: Callable[[Sequence[Frame]], None], lost: Callable[[], None]) -> None:
        """Receive frames from now on. `lost` is called when the learner is gone; nothing is sent or received then."""

    @abstractmethod
    def send(self, kind: Kind, payload: bytes, *, later: bool = False) -> None:
        """Send a frame. `later`: with the next one, or at the end of this turn of the loop."""

    def tell(self, message: Message, *, later: bool = False) -> None:
        """Send a control message."""
        self.send(Kind.MESSAGE, message.pack(), later=later)

    @abstractmethod
    def admitted(self, message: Admit, frame: Frame) -> AdmittedMemory:
        """Return the memory of a behavior that was admitted with this frame."""

    @abstractmethod
    def weights(self, message: Weights, frame: Frame) -> FloatArray:
        """Return a copy of the weights that a frame announced."""

    @abstractmethod
    def frozen_policy(self, frame: Frame) -> FloatArray:
        """Return the weights of the frozen policy that came with a frame."""

    @abstractmethod
    def deliver(self, runner: int, arena: Arena, segments: Segments) -> Sequence[int]:
        """Send closed segments of a runner; return the blocks that may be written again."""

    @abstractmethod
    async def finish(self, seconds: float) -> None:
        """Send what waits, within this time. Nothing may be sent afterwards."""
