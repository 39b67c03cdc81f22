"""One call on a connection: the messages of gRPC that came, and what waits to be sent."""

import asyncio
from collections import deque
from typing import Final

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
        length, most = int.from_bytes(data[1:PREFIX_BYTES], "big"), self._max_message_bytes
        if length > most:
            raise BadMessage(8, f"Received message larger than max ({length} vs. {most})")
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
