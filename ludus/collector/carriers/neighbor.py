"""An edge collector on the worker's own host takes over the channel of its place, and shares the learner's memory.

The edge reader listens on an abstract Unix socket, whose random name travels on the stream. It gives the channel to a
process of its own user whose id it can see: one that may write into the learner's memory anyhow. From another host or
another namespace the name leads nowhere, and the stream carries everything.

The reader gives its own end away, so the pool hears the end of the channel from the collector alone, after which it
writes no more: until then its blocks are lent to no one else, however long it is stopped.
"""

import asyncio
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ludus.collector.carriers.connection import LearnerConnection
from ludus.collector.carriers.local import LocalConnection
from ludus.collector.channel import Channel

HAS_ABSTRACT_SOCKETS: Final = sys.platform.startswith("linux")
TAKE_SECONDS: Final = 2.0
"""Time for the reader, which is on this machine, to give its channel away: it takes milliseconds."""
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group of the peer of a Unix socket."""


class ChannelOffer:
    """A channel that a neighbor may take, once."""

    def __init__(self, channel: Channel, taken: Callable[[], None]) -> None:
        """`taken` is called when it was given away; this process must not use the channel any more."""
        self.name = f"ludus-{secrets.token_hex(16)}".encode()
        self._channel = channel
        self._taken = taken
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        self._socket.bind(b"\0" + self.name)
        self._socket.listen(1)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Take the offer back. Safe to call twice."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the caller has gone again
            peer, _ = self._socket.accept()
            with peer:
                credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                process, user, _ = _CREDENTIALS.unpack(credentials)
                if not process or user != os.geteuid():  # 0: of another namespace
                    return
                socket.send_fds(peer, [b"\0"], [self._channel.fileno()])
            self.close()
            self._taken()


async def take_channel(name: bytes, seconds: float = TAKE_SECONDS) -> Channel | None:
    """Return the channel that is offered under a name; None where it is not offered to this process.

    Raises TimeoutError where a reader is there and gives nothing away in this time. It cannot do so afterwards.
    """
    if not HAS_ABSTRACT_SOCKETS:
        return None
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(b"\0" + name)
        except OSError:
            return None
        answered = asyncio.Event()
        loop.add_reader(sock.fileno(), answered.set)
        try:
            async with asyncio.timeout(seconds):
                await answered.wait()
        except TimeoutError:
            # The race: the reader gives the channel away now. What it sends from here on is an error for it, and it
            # keeps the channel; what it has sent is received below.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RD)
        finally:
            loop.remove_reader(sock.fileno())
        descriptors: list[int] = []
        with suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    if descriptors:
        return Channel(socket.socket(fileno=descriptors[0]))
    if not answered.is_set():
        raise TimeoutError
    return None


async def choose_carrier(
    stream: LearnerConnection, offers: Sequence[bytes], report: Callable[[int, str], None]
) -> LearnerConnection:
    """Return a connection in the memory of a worker of this machine, or else `stream`.

    `offers` are the names of the channels that the worker offers (`ChannelOffer`); `report` takes a level of `logging`
    and a sentence for people.
    """
    for name in offers:
        try:
            channel = await take_channel(name)
        except TimeoutError:
            silent = f"the worker is on this machine, but did not share its memory within {TAKE_SECONDS:.0f} s"
            report(logging.WARNING, f"{silent}: steps go to it over the network stream")
        else:
            if channel is not None:
                return LocalConnection(channel)
    return stream
