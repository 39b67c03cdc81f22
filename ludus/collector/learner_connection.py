"""A collector's end of the channel to the learner. Sending never blocks: the rest is queued."""

import asyncio
from collections.abc import Callable

from ludus.collector.channel import Channel, ChannelClosedError, Frame
from ludus.collector.messages import Kind, Message


class LearnerConnection:
    """A collector's end of the channel. Used in the event loop only."""

    def __init__(self, channel: Channel, lost: Callable[[], None]) -> None:
        """`lost` is called when the learner is gone; nothing is sent or received after that."""
        self._channel = channel
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._orphan = False

    def tell(self, message: Message) -> None:
        """Send a control message."""
        self.send(Kind.MESSAGE, message.pack())

    def send(self, kind: Kind, payload: bytes) -> None:
        """Send a frame."""
        if self._orphan:
            return
        try:
            self._channel.send(kind, payload)
            if self._channel.pending:
                self._loop.add_writer(self._channel.fileno(), self._writable)
        except ChannelClosedError:
            self._orphaned()

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived."""
        try:
            return self._channel.receive()
        except ChannelClosedError:
            self._orphaned()
            return []

    def _writable(self) -> None:
        try:
            self._channel.flush()
        except ChannelClosedError:
            self._orphaned()
        if not self._channel.pending:
            self._loop.remove_writer(self._channel.fileno())

    def _orphaned(self) -> None:
        self._orphan = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._lost()
