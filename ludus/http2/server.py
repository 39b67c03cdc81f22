"""The server's end: calls of gRPC's clients, passed to the handlers that `grpc.aio.Server` would pass them to."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import grpc
import grpc.aio

from ludus.http2.calls import EOF, CallAborted, CallDetails, answer_unary
from ludus.http2.connection import MOST_STREAMS, Connection
from ludus.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    Entry,
    ErrorCode,
    Headers,
    Metadata,
    Violation,
    encoded,
    frame,
    read_headers,
)
from ludus.http2.stream import PREFIX_BYTES, BadMessage, Stream, prefixed
from ludus.protocol.tls import is_loopback

log = logging.getLogger("ludus.http2")

_BACKLOG: Final = 1024
_HEAD: Final = b"\x88\x0f\x10\x10application/grpc"
"""`:status 200` and the content type, without the compressor's table (RFC 7541, 6.1 and 6.2.2)."""
_OK: Final = b"\x00\x0bgrpc-status\x010"
"""Trailing headers of a call that went well."""
_UNKNOWN, _UNIMPLEMENTED = 2, 12

Work: TypeAlias = Callable[[], Coroutine[object, None, object]]
"""Begins a handler."""


class ServerCall(Stream):
    """One call of a client: a `Call` to its handler."""

    def __init__(self, connection: "_ServerConnection", number: int, metadata: Metadata) -> None:
        super().__init__(number, *connection.new_stream_limits())
        self._served_by = connection
        self._metadata = metadata
        self._trailing: Metadata = ()
        self._answering = False
        """Whether the first headers have gone out."""
        self._over = False
        """Whether the last ones have."""
        self.handler: Any = None
        self.task: asyncio.Task[None] | None = None

    def peer(self) -> str:
        """Return the client's address, as gRPC writes it."""
        return self._served_by.peer

    def invocation_metadata(self) -> Metadata:
        """Return the call's metadata, without what is HTTP's."""
        return self._metadata

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set what goes out with the call's end."""
        self._trailing = metadata

    async def read(self) -> bytes:
        """Return the next message, or `EOF`; a stream that broke also ends so, and cancels its handler."""
        return self._served_by.take(self) if await self.has_message() else EOF

    async def write(self, message: bytes) -> None:
        """Send a message; wait where the client reads too slowly. It is dropped if the client has gone."""
        self.put(message)
        if self.unsent or self._served_by.is_full:
            await self.flushed()

    async def flushed(self) -> None:
        """Wait until everything is with the transport, and the transport takes more."""
        await self._served_by.flushed(self)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with a status. Raises always."""
        self._trailing = trailing_metadata
        self.end_with(code.value[0], details)
        raise CallAborted

    def put(self, message: bytes) -> None:
        """Send a message, or what the windows allow of it; the rest follows, if it is not too much."""
        if not self._answering:
            self._answering = True
            self._served_by.write(frame(HEADERS, END_HEADERS, self.number, _HEAD))
        self._served_by.put(self, message)
        if self.unsent:
            self._served_by.check_unsent()

    def reply(self, message: bytes) -> None:
        """Answer a unary call, and end it."""
        if self.unsent or self._trailing or len(message) > self._served_by.at_once(self):
            self.put(message)
            self.end_with(0, "")
        else:
            self._over = True
            self._served_by.reply(self, message)

    def end_with(self, status: int, details: str) -> None:
        """End the call with a status of gRPC, by number, and a sentence."""
        if self.broken or self._over:
            return
        self._over = True
        if status == 0 and not self._trailing and self._answering:
            self._served_by.end(self, _OK)
            return
        head: list[Entry] = [(":status", "200"), ("content-type", "application/grpc")]
        headers = [] if self._answering else head
        headers.append(("grpc-status", str(status)))
        if details:
            headers.append(("grpc-message", quote(details, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")))
        headers += encoded(self._trailing)
        self._served_by.end(self, self._served_by.encoder.encode(headers))


class _ServerConnection(Connection):
    """A client's connection."""

    def __init__(self, server: "Http2Server") -> None:
        super().__init__(server.max_message_bytes)
        self.peer = ""
        self._server = server
        self._greeting: bytes | None = b""
        """The part of the preface that has arrived; None when it is complete."""
        self._last = 0
        """The newest stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._server.connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._transport is not None:  # a client that does not read what it asked for asks for no more
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            greeting = self._greeting + data
            if not PREFACE.startswith(greeting[: len(PREFACE)]):
                log.info("%s speaks no HTTP/2 and is sent away", self.peer)
                self.close()
                return
            self._greeting = greeting if len(greeting) < len(PREFACE) else None
            data = greeting[len(PREFACE) :]
        super().data_received(data)

    def headers_came(self, number: int, headers: Headers, *, ended: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:  # trailing headers, which no client of gRPC sends
            stream.ended = stream.ended or ended
            self.messages_came(stream)
            return
        if number <= self._last:
            return  # of a stream that this end has finished
        if number % 2 == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"a client opened stream {number}; its numbers are odd")
        self._last = number
        values, metadata = read_headers(headers)
        method = values.get(":path", "")
        call = self.streams[number] = ServerCall(self, number, metadata)
        call.ended = ended
        if self._server.stopping or len(self.streams) > MOST_STREAMS:
            self.reset(call, ErrorCode.REFUSED_STREAM)
            self.calm.disturb()
            return
        call.handler = self._server.handler(CallDetails(method, metadata))
        if call.handler is None:
            call.end_with(_UNIMPLEMENTED, "Method not found!")
        elif call.handler.stream_stream is not None:
            self._start(call, partial(call.handler.stream_stream, None, call))
        elif ended:
            self.messages_came(call)

    def messages_came(self, stream: Stream) -> None:
        assert isinstance(stream, ServerCall), "this end opens calls alone"
        if stream.task is not None:
            stream.wake()
        elif stream.inbox:
            self._start(stream, partial(self._unary, stream, self.take(stream)))
        else:
            stream.end_with(_UNKNOWN, "the call ended without a message")

    def message_failed(self, stream: Stream, error: BadMessage) -> None:
        assert isinstance(stream, ServerCall), "this end opens calls alone"
        stream.end_with(*error)
        if stream.task is not None:
            stream.task.cancel()

    def stream_broke(self, stream: Stream) -> None:
        stream.wake()
        if isinstance(stream, ServerCall) and stream.task is not None:
            stream.task.cancel()

    def end(self, call: ServerCall, block: bytes) -> None:
        """End a call with a block of headers."""
        self.finish(call, frame(HEADERS, END_HEADERS | END_STREAM, call.number, block))

    def finished(self, stream: Stream) -> None:
        self.streams.pop(stream.number, None)
        self.forget(stream)
        if not stream.ended:  # nothing more is read of it (RFC 9113, 8.1)
            self.write(frame(RST_STREAM, 0, stream.number, int(ErrorCode.NO_ERROR).to_bytes(4, "big")))

    def check_unsent(self) -> None:
        """End the connection of a client that asks for more than it gives windows for."""
        if self.unsent_bytes > self.window:
            self.go_away(ErrorCode.ENHANCE_YOUR_CALM, f"{self.unsent_bytes} bytes wait for a window")
            self.close()

    def at_once(self, call: ServerCall) -> int:
        """Return the largest message that can be sent in one frame now."""
        return min(call.send_window, self._send_window, self._peer_max_frame) - PREFIX_BYTES

    def reply(self, call: ServerCall, message: bytes) -> None:
        """Answer a call whole, with one write."""
        number, data = call.number, prefixed(message)
        self._send_window -= len(data)
        end = frame(HEADERS, END_HEADERS | END_STREAM, number, _OK)
        self.write(frame(HEADERS, END_HEADERS, number, _HEAD) + frame(DATA, 0, number, data) + end)
        self.streams.pop(number, None)
        self.forget(call)

    def _start(self, call: ServerCall, work: Work) -> None:
        call.task = asyncio.get_running_loop().create_task(self._serve(call, work))

    async def _serve(self, call: ServerCall, work: Work) -> None:
        """Run a handler; its end is the call's."""
        try:
            await work()
        except CallAborted:
            pass
        except asyncio.CancelledError:
            call.end_with(1, "the server stops")
        except Exception as error:  # the edge of a call: a handler's mistake must not take others down
            log.exception("a call of %s failed", self.peer)
            call.end_with(_UNKNOWN, f"Unexpected {type(error)}: {error}")
        else:
            call.end_with(0, "")

    @staticmethod
    async def _unary(call: ServerCall, data: bytes) -> None:
        call.reply(await answer_unary(call.handler, data, call))


class Http2Server:
    """Serves handlers of gRPC to clients of this machine; used as `grpc.aio.Server` is.

    `max_message_bytes`: of a message that it takes. `share_port`: whether other servers may listen on the same port,
    and the kernel deals the clients out.
    """

    def __init__(self, max_message_bytes: int, *, share_port: bool = False) -> None:
        self.max_message_bytes = max_message_bytes
        self.connections: set[_ServerConnection] = set()
        self.stopping = False
        self._share_port = share_port
        self._handlers: list[Any] = []
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Ask these for the handlers of methods, in their order."""
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> int:
        """Take a port, `host:port` or `[host]:port` (0: any); return it.

        Raises RuntimeError if it cannot be had, ValueError for a host that is no address of loopback.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not is_loopback(host):
            raise ValueError(f"{host} is not this machine's loopback: gRPC serves other addresses")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            where, shares = (host, int(port)), self._share_port
            bound = socket.create_server(where, family=family, backlog=_BACKLOG, reuse_port=shares)
        except OSError as error:
            raise RuntimeError(f"can't listen on {address}: {error.strerror}") from None
        self._sockets.append(bound)
        return int(bound.getsockname()[1])

    def handler(self, details: CallDetails) -> Any:
        """Return the handler of a method; None if there is none."""
        services = (handlers.service(details) for handlers in self._handlers)
        return next((handler for handler in services if handler is not None), None)

    async def start(self) -> None:
        """Begin to serve."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            self._listeners.append(await loop.create_server(lambda: _ServerConnection(self), sock=bound))

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, wait `grace` seconds for those under way, and close every connection.

        Returns when the connections have ended: an event loop that is closed before keeps their sockets, and uvloop's
        waits for them without end.
        """
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        for bound in self._sockets:  # also where it never began to serve
            bound.close()
        for connection in self.connections:
            connection.go_away(ErrorCode.NO_ERROR, "the server stops")
        streams = [stream for connection in self.connections for stream in connection.streams.values()]
        tasks = {stream.task for stream in streams if isinstance(stream, ServerCall) and stream.task is not None}
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        connections = [*self.connections]
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.lost.wait()
