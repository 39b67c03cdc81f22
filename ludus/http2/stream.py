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
from typing import Final, NamedTuple

from ludus.http2.frames import ErrorCode, Violation

PREFIX_BYTES: Final = 5
"""Before each message of gRPC: a flag for compression, and the length."""


def prefixed(message: bytes) -> bytes:
    """Return a message as it stands in DATA."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class BadMessage(NamedTuple):
    """Why a message cannot be taken; `status` is that of gRPC, by number."""

    status: int
    sentence: str


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
        self.part = bytearray()
        """The beginning of a message that is not whole yet."""
        self._max_message_bytes = max_message_bytes
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def receive(self, data: bytes | bytearray) -> BadMessage | None:
        """Take the payload of a DATA frame; return why the next message cannot be taken, if so."""
        if self.part:
            self.part += data
            data = self.part
        start = 0
        while start < len(data):
            if data[start]:
                return BadMessage(12, "a message is compressed; this port takes plain ones")
            content = start + PREFIX_BYTES
            if content > len(data):
                break
            length, limit = int.from_bytes(data[start + 1 : content], "big"), self._max_message_bytes
            if length > limit:
                return BadMessage(8, f"Received message larger than max ({length} vs. {limit})")
            if content + length > len(data):
                break
            self.inbox.append(bytes(data[content : content + length]))
            start = content + length
        if data is self.part:
            del self.part[:start]
        else:
            self.part += data[start:]
        return None

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


CALM_FRAMES: Final = 1000.0
"""Frames without a message that a peer may send at once: clients that leave reset all of their streams."""
CALM_FRAMES_PER_SECOND: Final = 100.0


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
