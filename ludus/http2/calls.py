"""A call as its handler sees it, whichever server has taken it: gRPC's own (`GrpcCall`) or `ludus.http2.server`'s."""

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple, Protocol

import grpc
import grpc.aio

from ludus.http2.frames import Metadata

EOF: Final[Any] = getattr(grpc.aio, "EOF")  # noqa: B009  the type stubs do not know it
"""Stands for the next message where a stream has ended."""
BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""Errors of a call that has broken."""


class CallDetails(NamedTuple):
    """A call as handlers choose by it: `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class CallAborted(Exception):
    """A handler ended its call with a status."""


class ExchangeCall(Protocol):
    """A call whose reply says all: it needs no status."""

    def peer(self) -> str:
        """Return the client's address, as gRPC writes it."""

    def invocation_metadata(self) -> Metadata | None:
        """Return the call's metadata."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set what goes out with the call's end."""


class UnaryCall(ExchangeCall, Protocol):
    """A call with one request and one response, or a status."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with a status. Raises always."""


class StreamCall(UnaryCall, Protocol):
    """A call with a stream of requests, and one of responses."""

    async def read(self) -> bytes:
        """Return the next message, or `EOF`."""

    async def write(self, message: bytes) -> None:
        """Send a message; wait where the client reads too slowly."""


class Call(StreamCall, Protocol):
    """A stream that is also written to by functions that cannot wait."""

    def put(self, message: bytes) -> None:
        """Send a message, now or as soon as the client reads. It is dropped if the client has gone."""

    async def flushed(self) -> None:
        """Wait until everything is sent, or the stream is broken."""


class GrpcCall:
    """A call of `grpc.aio`'s server: a `Call`. Messages that are put are written by a task, in order."""

    def __init__(self, context: StreamCall) -> None:
        self.peer = context.peer
        self.invocation_metadata = context.invocation_metadata
        self.set_trailing_metadata = context.set_trailing_metadata
        self.abort = context.abort
        self.read = context.read
        self.write = context.write
        self._queue: deque[bytes] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._broken = False

    def put(self, message: bytes) -> None:
        """Send a message behind those that were put before. It is dropped if the client has gone."""
        if not self._broken:
            self._queue.append(message)
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def flushed(self) -> None:
        """Wait until everything is sent, or the stream is broken."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        try:
            while self._queue:
                await self.write(self._queue.popleft())
        except (*BROKEN, asyncio.CancelledError):  # reading finds out, and ends the session
            self._broken = True
            self._queue.clear()
        finally:
            self._writing = None


async def answer_unary(handler: Any, data: bytes, call: UnaryCall) -> bytes:
    """Return the answer of a unary method's handler to a request, both as bytes."""
    request = data if handler.request_deserializer is None else handler.request_deserializer(data)
    response = await handler.unary_unary(request, call)
    answer: bytes = response if handler.response_serializer is None else handler.response_serializer(response)
    return answer
