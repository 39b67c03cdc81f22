"""The client's end: a channel to a server of this machine, used as `grpc.aio.Channel` is."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

import grpc
import grpc.aio

from ludus.http2.calls import EOF
from ludus.http2.connection import Connection
from ludus.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    ErrorCode,
    Headers,
    Metadata,
    Violation,
    encoded,
    frame,
    read_headers,
)
from ludus.http2.stream import BadMessage, Stream

RETRY_SECONDS: Final = 0.05
"""Between attempts to connect."""
_STATUSES: Final = {int(status.value[0]): status for status in grpc.StatusCode}
_CLOSED: Final = "Socket closed"
"""Details of a call whose connection broke: gRPC's own words, which `ludus.sdk.errors` reads."""

Message: TypeAlias = Any
"""A message of protobuf; bytes where no serializer is given."""
Serializer = Callable[[Message], bytes] | None
Deserializer = Callable[[bytes], Message] | None


class ClientCall(Stream):
    """One call, unary or a stream: what gRPC's calls of either kind are."""

    def __init__(self, connection: "_ClientConnection", number: int, write: Serializer, read: Deserializer) -> None:
        super().__init__(number, *connection.new_stream_limits())
        self._made_by = connection
        self._serialize = write
        self._deserialize = read
        self._initial: Metadata = ()
        self._trailing: Metadata = ()
        self._status: tuple[grpc.StatusCode, str] | None = None

    def __await__(self) -> Generator[object, None, Message]:
        """Return the only answer. Raises AioRpcError."""
        return self._answer().__await__()

    async def read(self) -> Message:
        """Return the next message, or `grpc.aio.EOF` at an end without an error. Raises AioRpcError."""
        if await self.has_message():
            message = self._made_by.take(self)
            return message if self._deserialize is None else self._deserialize(message)
        error = self._error()
        if error is not None:
            raise error
        return EOF

    async def write(self, request: Message) -> None:
        """Send a message; wait where the server reads too slowly. Raises AioRpcError once the call is over."""
        if self.done():
            raise self._error() or asyncio.InvalidStateError("the call is over")
        self._made_by.put(self, request if self._serialize is None else self._serialize(request))
        if self.unsent or self._made_by.is_full:
            await self._made_by.flushed(self)

    async def done_writing(self) -> None:
        """End this side of the call."""
        if not self.broken:
            self._made_by.finish(self, frame(DATA, END_STREAM, self.number))

    def cancel(self) -> bool:
        """Break the call off; whether it was still under way."""
        if self._status is not None:
            return False
        self.over(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        self._made_by.reset(self, ErrorCode.CANCEL)
        return True

    def cancelled(self) -> bool:
        """Whether the call was broken off."""
        return self._status is not None and self._status[0] is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Whether the call is over."""
        return self._status is not None

    async def trailing_metadata(self) -> Metadata:
        """Return the metadata of the call's end."""
        return self._trailing

    def headers_came(self, headers: Headers, *, last: bool) -> None:
        """Take the server's first or last headers. Raises Violation."""
        values, metadata = read_headers(headers)
        if not last:
            self._initial = metadata
            return
        self._trailing = metadata
        number = values.get("grpc-status", "2")
        status = _STATUSES.get(int(number) if number.isdecimal() else 2, grpc.StatusCode.UNKNOWN)
        self.over(status, unquote(values.get("grpc-message", "")))

    def over(self, status: grpc.StatusCode, details: str) -> None:
        """Record the call's end, the first one that is known."""
        if self._status is None:
            self._status = (status, details)
            self.ended = True
        self.wake()

    async def _answer(self) -> Message:
        try:
            answer = await self.read()
            if answer is EOF or await self.has_message():
                raise _error(grpc.StatusCode.INTERNAL, "a unary call has one answer", self._initial, self._trailing)
        except asyncio.CancelledError:
            self.cancel()
            raise
        error = self._error()
        if error is not None:
            raise error
        return answer

    def _error(self) -> grpc.aio.AioRpcError | None:
        """Return the error that the call ended with, if it did."""
        status, details = self._status or (grpc.StatusCode.UNAVAILABLE, _CLOSED)
        if status is grpc.StatusCode.OK:
            return None
        return _error(status, details, self._initial, self._trailing)


class _ClientConnection(Connection):
    """A connection that this program opened."""

    def __init__(self, host: str, max_message_bytes: int) -> None:
        super().__init__(max_message_bytes)
        self.is_lost = False
        self._host = host
        self._next = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(PREFACE)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        super().connection_lost(error)

    def call(self, method: str, metadata: Metadata, write: Serializer, read: Deserializer) -> ClientCall:
        """Open a call."""
        call = ClientCall(self, self._next, write, read)
        self._next += 2
        if self.is_lost:
            call.broken = True
            call.over(grpc.StatusCode.UNAVAILABLE, _CLOSED)
            return call
        headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", self._host)]
        headers += [("te", "trailers"), ("content-type", "application/grpc"), *encoded(metadata)]
        self.streams[call.number] = call
        self.write(frame(HEADERS, END_HEADERS, call.number, self.encoder.encode(headers)))
        return call

    def headers_came(self, number: int, headers: Headers, *, ended: bool) -> None:
        call = self.streams.get(number)
        if call is None:
            if number % 2 == 0 or number >= self._next:
                raise Violation(ErrorCode.PROTOCOL_ERROR, f"headers of stream {number} came, which was never opened")
            return
        assert isinstance(call, ClientCall), "this end opens calls alone"
        call.headers_came(headers, last=ended)
        if ended:
            self.streams.pop(number, None)

    def message_failed(self, stream: Stream, error: BadMessage) -> None:
        assert isinstance(stream, ClientCall), "this end opens calls alone"
        stream.over(_STATUSES[error.status], error.sentence)
        self.reset(stream, ErrorCode.CANCEL)

    def stream_broke(self, stream: Stream) -> None:
        assert isinstance(stream, ClientCall), "this end opens calls alone"
        stream.over(grpc.StatusCode.UNAVAILABLE, _CLOSED)


class Http2Channel:
    """A connection to a server on loopback. It is made once: after it has broken, every call fails."""

    def __init__(self, address: str, max_message_bytes: int) -> None:
        """`address` is host:port or [host]:port; `max_message_bytes`: of an answer."""
        self._address = address
        self._max_message_bytes = max_message_bytes
        self._connection: _ClientConnection | None = None

    async def channel_ready(self) -> None:
        """Connect. Tries without end: the caller has a time-out."""
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        while self._connection is None:
            try:
                _, self._connection = await loop.create_connection(
                    lambda: _ClientConnection(self._address, self._max_message_bytes), host.strip("[]"), int(port)
                )
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)

    def unary_unary(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Deserializer = None
    ) -> Callable[..., ClientCall]:
        """Return a function that begins a call with its request."""

        def begin(request: Message, *, metadata: Metadata = ()) -> ClientCall:
            call = self._open(method, metadata, request_serializer, response_deserializer)
            connection = self._ready
            connection.put(call, request if request_serializer is None else request_serializer(request))
            if not call.broken:
                connection.finish(call, frame(DATA, END_STREAM, call.number))
            return call

        return begin

    def stream_stream(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Deserializer = None
    ) -> Callable[..., ClientCall]:
        """Return a function that opens a stream."""

        def begin(*, metadata: Metadata = ()) -> ClientCall:
            return self._open(method, metadata, request_serializer, response_deserializer)

        return begin

    async def close(self, _: float | None = None) -> None:
        """Close the connection, and wait for its end; what is under way fails."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.lost.wait()

    @property
    def _ready(self) -> _ClientConnection:
        if self._connection is None:
            raise RuntimeError("a call was made before `channel_ready` had ended")
        return self._connection

    def _open(self, method: str, metadata: Metadata, write: Serializer, read: Deserializer) -> ClientCall:
        return self._ready.call(method, metadata, write, read)


def _error(status: grpc.StatusCode, details: str, initial: Metadata, trailing: Metadata) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(*initial), grpc.aio.Metadata(*trailing), details, "")
