"""A door of WebSockets to a server of gRPC on this machine, for testing clients: it passes each call on as it is.

Framings make of a message what RFC 6455 allows: pings before it, fragments, texts with keys of later versions. Clients
whose WebSockets are written by hand get these wrong.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias

import grpc
import grpc.aio
from websockets.asyncio.server import ServerConnection

from ludus.http2.calls import BROKEN, EOF
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import MAX_MESSAGE_BYTES, SERVICE, client_options
from ludus.websocket import AWAY, WebSocketCall, WebSocketServer

CALL_SECONDS: Final = 0.5
"""How long calls may take when the door closes."""
HOST: Final = "127.0.0.1"
PONG_SECONDS: Final = 5.0
"""How long a client that waits for an answer may take to answer a ping."""
PING: Final = bytes(range(131, 256))
"""The longest content of a ping, and no text."""
LATER_KEYS: Final = {"later": {"list": [1, -2.5e3, None, True, {"text": '"\\ \u00e4\U0001f600\n'}], "empty": []}}
"""What a later version may add to a text, and a parser of JSON has to know."""
LATER_METADATA: Final = {"later-bin": '{["\u00e4"]}'}


class NoPong(Exception):
    """A client does not answer a ping with the same bytes."""


Framing: TypeAlias = Callable[[ServerConnection, str | bytes], Awaitable[None]]
"""Sends a message. Raises NoPong, ConnectionClosed."""


async def pinged(connection: ServerConnection, message: str | bytes) -> None:
    """Ping before each message, and wait for the answer."""
    await _answered(await connection.ping(PING))
    await connection.send(message)


async def fragmented(connection: ServerConnection, message: str | bytes) -> None:
    """Send each message in three fragments, the last one empty, with a ping between the first two."""
    pongs: list[Awaitable[float]] = []

    async def fragments() -> AsyncIterator[str | bytes]:
        yield message[:1]
        pongs.append(await connection.ping(PING))
        yield message[1:]

    await connection.send(fragments())
    await _answered(pongs[0])


async def with_later_keys(connection: ServerConnection, message: str | bytes) -> None:
    """Send a text that says nothing before each message, and add keys to each text that says something."""
    await connection.send(json.dumps({"metadata": LATER_METADATA, **LATER_KEYS}, ensure_ascii=False))
    if isinstance(message, str):
        said = json.loads(message)
        message = json.dumps({**LATER_KEYS, **said, "metadata": {**LATER_METADATA, **said["metadata"]}})
    await connection.send(message)


async def going_away(connection: ServerConnection, message: str | bytes) -> None:
    """Close with 1001 where a call fails, as a server does that stops; send all else as it is."""
    if isinstance(message, str):
        await connection.close(AWAY)
    else:
        await connection.send(message)


async def _answered(pong: Awaitable[float]) -> None:
    try:
        await asyncio.wait_for(pong, PONG_SECONDS)
    except TimeoutError:
        raise NoPong(
            f"the client did not answer a ping of {len(PING)} bytes with a pong of the same bytes in {PONG_SECONDS:g} s"
        ) from None


class WebSocketDoor:
    """Serves on a port of this machine, in a thread of its own. A context."""

    def __init__(
        self,
        address: str,
        port: int = 0,
        framing: Framing | None = None,
        violation: Callable[[str], object] = lambda _: None,
        assigned: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`address` is the server's; where it assigns itself to a client, the client is led back to this door.

        `port`: 0 for any. `violation` gets what a client does wrong in a framing, `assigned` the address to which a
        client is led. Raises OSError if the port is taken.
        """
        self._framing = framing
        self._violation = violation
        self._assigned = assigned
        self._behind = address
        self._server = WebSocketServer(MAX_MESSAGE_BYTES)
        self.port = self._server.add_port(HOST, port)
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="websocket-door")

    @property
    def url(self) -> str:
        """Address of the door, `ws://host:port`."""
        return f"ws://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        methods: Any = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join),
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.strip("/"), methods),))
        async with grpc.aio.insecure_channel(self._behind, client_options(HOST)) as self._channel:
            await self._server.start()
            self._listening.set()
            await self._closing.wait()
            await self._server.stop(CALL_SECONDS)

    def _frame(self, call: WebSocketCall) -> None:
        """Send the messages of a call as the framing does."""
        if (framing := self._framing) is None:
            return

        async def transmit(message: str | bytes) -> None:
            try:
                await framing(call.connection, message)
            except NoPong as error:
                self._violation(str(error))
                call.transmit = call.connection.send
                self._framing = None  # the client is to hear that it fails
                await call.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

        call.transmit = transmit

    async def _join(self, request: bytes, call: WebSocketCall) -> bytes:
        self._frame(call)
        call_unary: Any = self._channel.unary_unary
        try:
            response = pb.JoinResponse.FromString(
                await call_unary(f"{SERVICE}Join")(request, metadata=call.invocation_metadata())
            )
        except grpc.aio.AioRpcError as error:
            await call.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
        if response.assignment.address == self._behind:
            response.assignment.address = f"{HOST}:{self.port}"
            self._assigned(response.assignment.address)
        return response.SerializeToString()

    async def _connect(self, _: None, call: WebSocketCall) -> None:
        self._frame(call)
        call_stream: Any = self._channel.stream_stream
        stream = call_stream(f"{SERVICE}Connect")(metadata=call.invocation_metadata())
        upward = asyncio.ensure_future(_pass_on(call, stream))
        try:
            with suppress(*BROKEN):
                while (message := await stream.read()) is not EOF:
                    await call.write(message)
            code = await stream.code()
            if code is not grpc.StatusCode.OK:
                await call.abort(code, await stream.details())
        finally:
            stream.cancel()
            upward.cancel()


async def _pass_on(call: WebSocketCall, stream: Any) -> None:
    """From client to server, to the client's end."""
    with suppress(*BROKEN):
        while (message := await call.read()) is not EOF:
            await stream.write(message)
        await stream.done_writing()
