"""One call on a connection: the messages of gRPC that came, what waits to be sent, and what a peer may cost.

The limits of what a peer may cost a connection (RFC 9113, 10.5):

- Bytes that came: a stream's window (5.2, 6.9.1) is topped up while its messages are read, the connection's as its
  streams are. The peer stops at `CONNECTION_WINDOW` and one message of the largest size, unread and incomplete ones of
  all streams together. A message for whose rest that leaves no room ends its stream.
- Bytes that wait for the peer's windows (6.9): as many, then the server's end ends the connection. It does not read
  from a peer that does not read its socket, either.
- Frames that carry no message (resets, PING, SETTINGS, empty ones, PRIORITY, streams beyond the limit): `CALM_FRAMES`
  at once and `CALM_FRAMES_PER_SECOND`, then the connection ends with ENHANCE_YOUR_CALM (7).
"""

import asyncio
import time
from collections import deque
from typing import Final

from ludus.http2.frames import LARGEST_WINDOW, ErrorCode, Violation

PREFIX_BYTES: Final = 5
"""Before each message of gRPC: a flag for compression, and the length."""


def prefixed(message: bytes) -> bytes:
    """Return a message as it stands in DATA."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class BadMessage(Exception):
    """A message cannot be taken; `status` is that of gRPC, by number."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Stream:
    """The state of one call. Messages that came wait until its owner reads them; its connection changes it."""

    def __init__(self, number: int, send_window: int, max_message_bytes: int) -> None:
        """`max_message_bytes`: of a message that this end takes."""
        self.number = number
        self.ended = False
        """Whether the peer sends nothing more."""
        self.broken = False
        """Whether the stream was reset, or its connection is lost."""
        self.send_window = send_window
        """Bytes that the peer takes before it reads on; negative where it has made its windows smaller."""
        self.unsent = bytearray()
        """Prefixed messages that wait for a window."""
        self.last = b""
        """The frame that ends this side of the stream, once everything before it is sent."""
        self.credit = 0
        """Bytes that came, and for which the peer has got no new window yet."""
        self.held_bytes = 0
        """That came and are not read yet, as they count for the connection's window."""
        self.inbox: deque[bytes] = deque()
        self._max_message_bytes = max_message_bytes
        self._part = bytearray()
        """Of a message that is not whole yet."""
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def receive(self, data: bytes) -> None:
        """Take the payload of a DATA frame. Raises BadMessage."""
        if self._part:
            self._part += data
            if len(self._part) < self._wanted(self._part):
                return
            data = bytes(self._part)
            self._part.clear()
        while data:
            size = self._wanted(data)
            if len(data) < size:
                self._part += data
                return
            self.inbox.append(data[PREFIX_BYTES:size])
            data = data[size:]

    def drop_part(self) -> int:
        """Drop an incomplete message; return its bytes."""
        size = self.part_bytes
        self._part.clear()
        return size

    @property
    def part_bytes(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._part)

    def _wanted(self, data: bytes | bytearray) -> int:
        """Return how many bytes the message that begins here has, with its prefix. Raises BadMessage."""
        if data[0]:
            raise BadMessage(12, "a message is compressed; this port takes plain ones")
        if len(data) < PREFIX_BYTES:
            return PREFIX_BYTES
        length, limit = int.from_bytes(data[1:PREFIX_BYTES], "big"), self._max_message_bytes
        if length > limit:
            raise BadMessage(8, f"Received message larger than max ({length} vs. {limit})")
        return PREFIX_BYTES + length

    async def has_message(self) -> bool:
        """Wait for the next message; whether there is one: not at the end of the stream, nor where it broke."""
        while not self.inbox and not self.ended and not self.broken:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return bool(self.inbox)

    async def changed(self) -> None:
        """Wait for `wake`: more may be sent."""
        self._writer = asyncio.get_running_loop().create_future()
        await self._writer

    def wake(self) -> None:
        """Wake the tasks that wait to read or to write: what they wait for may be there."""
        for waiting in (self._reader, self._writer):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)


CONNECTION_WINDOW: Final = 1 << 24
"""Bytes of all streams that a peer may send before they are read, beside one message of the largest size."""
CALM_FRAMES: Final = 1000.0
"""Frames without a message that a peer may send at once: clients that leave reset all of their streams."""
CALM_FRAMES_PER_SECOND: Final = 100.0


class ReceivedBytes:
    """The connection's window (6.9.1): the peer gets it back as its bytes are read, so it stops at `window`."""

    def __init__(self, max_message_bytes: int) -> None:
        self.window = min(CONNECTION_WINDOW + max_message_bytes, LARGEST_WINDOW)
        """Bytes that the peer may send before it gets new window."""
        self._held = 0
        """That came and are not read yet."""
        self._partial = 0
        """Those of them that belong to incomplete messages."""
        self._read = 0
        """For which the peer has got no new window yet."""

    def take(self, stream: Stream | None, size: int) -> None:
        """Count bytes of a stream, or of none (dropped ones). Raises Violation if the peer had no window."""
        if self._held + self._read + size > self.window:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window came")
        if stream is None:
            self._read += size
        else:
            self._held += size
            stream.held_bytes += size

    def release(self, stream: Stream, size: int) -> None:
        """Note that so many bytes of a stream were read, or are not kept any more."""
        stream.held_bytes -= size
        self._held -= size
        self._read += size

    def grew(self, size: int) -> None:
        """Note by how many bytes a stream's incomplete message has grown."""
        self._partial += size

    def forget(self, stream: Stream) -> None:
        """Release what is kept of a stream that is not read any more."""
        self._partial -= stream.drop_part()
        self.release(stream, stream.held_bytes)

    def check_room(self, size: int) -> None:
        """Raise BadMessage if incomplete messages leave less than so many bytes of the window for their rests."""
        if self._partial > self.window - size:
            raise BadMessage(8, "the incomplete messages of this connection leave no room for their rests")

    def new_window(self) -> int:
        """Return the window that the peer gets back now: much of it at once, or what it needs to go on."""
        read = self._read
        if read < max(1, min(CONNECTION_WINDOW // 2, self.window - self._held - read)):
            return 0
        self._read = 0
        return read


class Calm:
    """Limits the rate of frames that carry no message."""

    def __init__(self) -> None:
        self._left = CALM_FRAMES
        self._since = time.monotonic()

    def disturb(self, frames: float = 1.0) -> None:
        """Count frames. Raises Violation if there are too many."""
        now = time.monotonic()
        self._left = min(CALM_FRAMES, self._left + (now - self._since) * CALM_FRAMES_PER_SECOND) - frames
        self._since = now
        if self._left < 0:
            sentence = f"over {CALM_FRAMES_PER_SECOND:.0f} frames a second came that carry no message"
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, sentence)
