"""gRPC's calls over WebSockets (RFC 6455), for clients that have no HTTP/2: browsers, and games built for them.

One socket carries one call, whose method is the path. Messages of text are JSON: the call's metadata first, and the
status of a call that failed last. Each binary message is one message of gRPC. Handlers are those of `grpc.aio.Server`:
they do not know who serves them. The library `websockets` does the framing.

proto/README.md, section 15, is the contract.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import urlsplit

import grpc
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK
from websockets.typing import Subprotocol

from ludus.http2.calls import EOF, CallAborted, CallDetails, answer_unary
from ludus.protocol.contract import HELLO_SECONDS
from ludus.protocol.options import KEEPALIVE_SECONDS, REASON_METADATA
from ludus.protocol.tls import TlsFiles, is_loopback

log = logging.getLogger("ludus.websocket")

SUBPROTOCOL: Final = Subprotocol("ludus.v1")
MOST_METADATA_BYTES: Final = 8192
FAILED: Final = 4000
"""Close code of a failed call, to which the number of gRPC's status is added."""
DONE, AWAY = 1000, 1001
ANY_ORIGIN: Final = "*"
FOREIGN_ORIGIN: Final = "foreign_origin"
"""Name of the error of a page that may not connect."""
_PEER_SECONDS: Final = 2.0
"""How long a client may take to answer the closing handshake."""
_AHEAD: Final = 4
"""Messages of a client that are kept before they are read."""

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


class WebSocketCall:
    """One call of a client: a `StreamCall` to its handler."""

    def __init__(self, connection: ServerConnection) -> None:
        assert connection.request is not None, "its handshake is over"
        self.method = connection.request.path
        self.origins = connection.request.headers.get_all("Origin")
        """The page that the client is part of; none: it is no browser."""
        self.streams = False
        """Whether the client ends its own side by closing the socket."""
        self.status = (grpc.StatusCode.UNKNOWN, "the server made a mistake; its log has the details", ())
        self.connection = connection
        self.transmit: Callable[[str | bytes], Awaitable[None]] = connection.send
        """Sends a message; a server that tests clients replaces it, and cuts messages into other frames."""
        host, port = connection.remote_address[:2]
        self._peer = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._sending = asyncio.Lock()

    def peer(self) -> str:
        """Return the client's address, as gRPC writes it."""
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the call's metadata."""
        return self._metadata

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Do nothing: a call that goes well ends without metadata."""

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send metadata before the answer."""
        await self._send(json.dumps({"metadata": _readable(metadata)}))

    async def read(self) -> bytes:
        """Return the next message, or `EOF`. Raises InvalidStateError if the connection breaks."""
        async with self._sending:  # a client that does not read what it asked for asks for no more
            pass
        try:
            return await self.connection.recv(decode=False)
        except ConnectionClosedOK:
            end: bytes = EOF
            return end
        except ConnectionClosed as error:
            raise asyncio.InvalidStateError(str(error)) from None

    async def write(self, message: bytes) -> None:
        """Send a message; wait where the client reads too slowly. It is dropped if the client has gone."""
        await self._send(message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status. Raises always."""
        self.status = (code, details, trailing_metadata)
        raise CallAborted

    async def open(self) -> None:
        """Read the metadata. Raises CallAborted."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                text = await self.connection.recv()
            entries = json.loads(text) if isinstance(text, str) and len(text) <= MOST_METADATA_BYTES else None
        except TimeoutError:
            await self.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no metadata came within {HELLO_SECONDS:.0f} s")
        except ConnectionClosed:
            raise CallAborted from None
        except (ValueError, RecursionError):
            entries = None
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            await self.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "the first message of a socket must be text: the call's metadata, as a JSON object of strings of at "
                f"most {MOST_METADATA_BYTES} characters",
            )
        self._metadata = tuple(entries.items())

    async def end(self, code: int, reason: str = "") -> None:
        """Close the socket."""
        await self.connection.close(code, reason)

    async def fail(self) -> None:
        """Send the status, and close the socket."""
        code, details, metadata = self.status
        readable = _readable(metadata)
        await self._send(json.dumps({"status": code.name, "details": details, "metadata": readable}))
        await self.end(FAILED + code.value[0], readable.get(REASON_METADATA, code.name.lower()))

    async def _send(self, message: str | bytes) -> None:
        async with self._sending:
            with suppress(ConnectionClosed):  # reading finds out
                await self.transmit(message)


class WebSocketServer:
    """Serves handlers of gRPC to clients with WebSockets; used as `grpc.aio.Server` is.

    `origins` are those of pages that may connect, beside pages of this machine: `https://game.example`, `null`, or `*`.
    """

    def __init__(self, max_message_bytes: int, origins: Collection[str] = (), tls: TlsFiles | None = None) -> None:
        self._max_message_bytes = max_message_bytes
        self._origins = frozenset(origins)
        self._tls = tls
        self._handlers: list[Any] = []
        self._socket: socket.socket | None = None
        self._server: Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Ask these for the handlers of methods, in their order."""
        self._handlers += handlers

    def add_port(self, host: str, port: int) -> int:
        """Take a port (0: any); return it. Raises OSError if it cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=host == "::")
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Begin to serve."""
        library = logging.getLogger("ludus.websocket.library")
        library.setLevel(logging.CRITICAL)  # it takes what a stranger sends for an error of its own
        self._server = await serve(
            self._serve,
            sock=self._socket,
            ssl=None if self._tls is None else self._tls.context(),
            subprotocols=[SUBPROTOCOL],
            compression=None,  # most of it is floats, and a small message can become a large one
            max_size=self._max_message_bytes,
            max_queue=_AHEAD,
            ping_interval=KEEPALIVE_SECONDS,
            ping_timeout=KEEPALIVE_SECONDS,
            close_timeout=_PEER_SECONDS,
            server_header=None,
            logger=library,
        )

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, wait `grace` seconds for those under way, and close every socket."""
        if self._server is None:
            return
        self._server.close(close_connections=False)
        if self._calls and grace:
            await asyncio.wait(self._calls, timeout=grace)
        for call in self._calls:
            call.cancel()
        await self._server.wait_closed()

    async def _serve(self, connection: ServerConnection) -> None:
        """Answer the call of one socket."""
        call = WebSocketCall(connection)
        work = asyncio.ensure_future(self._answer(call))
        self._calls.add(work)
        lost = asyncio.ensure_future(connection.wait_closed())
        await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done() and not (call.streams and connection.close_code in {DONE, AWAY}):
            work.cancel()  # as gRPC does where a client has gone
        await asyncio.wait({work})
        self._calls.discard(work)
        lost.cancel()
        if work.cancelled():
            await call.end(AWAY, "the server stops")
        elif (error := work.exception()) is None:
            await call.end(DONE)
        else:
            if not isinstance(error, CallAborted):  # the edge of a call: a handler's mistake must not take others down
                log.error("a call of %s by %s failed", call.method, call.peer(), exc_info=error)
            await call.fail()

    async def _answer(self, call: WebSocketCall) -> None:
        if not all(map(self._admits, call.origins)):
            sentence = (
                f"a page of {call.origins[0]} may not connect to this server: name its origin in "
                "LUDUS_GATEWAY__WEBSOCKET_ORIGINS"
            )
            await call.abort(grpc.StatusCode.PERMISSION_DENIED, sentence, ((REASON_METADATA, FOREIGN_ORIGIN),))
        await call.open()
        services = (
            handlers.service(CallDetails(call.method, call.invocation_metadata())) for handlers in self._handlers
        )
        handler = next((handler for handler in services if handler is not None), None)
        if handler is None:
            await call.abort(grpc.StatusCode.UNIMPLEMENTED, f"this server has no method {call.method[:200]}")
        if handler.stream_stream is not None:
            call.streams = True
            await handler.stream_stream(None, call)
        elif (request := await call.read()) is not EOF:
            await call.write(await answer_unary(handler, request, call))

    def _admits(self, origin: str) -> bool:
        """Whether a page may connect. Any page in a browser could, which is not the user's wish."""
        if ANY_ORIGIN in self._origins or origin in self._origins:
            return True
        try:
            return is_loopback(urlsplit(origin).hostname or "")
        except ValueError:
            return False


def _readable(metadata: Metadata) -> dict[str, str]:
    """Return metadata as texts; what is bytes in gRPC are sentences in UTF-8."""
    return {name: value if isinstance(value, str) else value.decode(errors="replace") for name, value in metadata}
