"""Turns of requests with a body: a token that sends many at once takes no more than its share of the processor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from server.kit.http.errors import TooManyBodies

AT_ONCE: Final = 3
"""Requests with a body of one token, or of one address without a token, that are handled at once; others wait."""
WAITING_BYTES: Final = 16 << 20
"""Most bytes of bodies that one of them may make wait."""


@dataclass
class _Sender:
    turns: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(AT_ONCE))
    bodies: int = 0
    held_bytes: int = 0


class Turns:
    """Lets requests with a body be handled one after the other, `AT_ONCE` of a sender at once. For one event loop."""

    def __init__(self) -> None:
        self._senders: dict[str, _Sender] = {}

    @asynccontextmanager
    async def take(self, name: str, size: int) -> AsyncIterator[None]:
        """Wait for a turn of a sender with a body of `size` bytes, and hold it. Raises TooManyBodies."""
        sender = self._senders.setdefault(name, _Sender())
        if sender.bodies >= AT_ONCE and sender.held_bytes + size > WAITING_BYTES:
            raise TooManyBodies(WAITING_BYTES)
        sender.bodies += 1
        sender.held_bytes += size
        try:
            async with sender.turns:
                yield
        finally:
            sender.bodies -= 1
            sender.held_bytes -= size
            if not sender.bodies:
                del self._senders[name]
