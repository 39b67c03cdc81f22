"""A door of WebSockets to a server of gRPC on this machine, for testing clients: it passes each call on as it is."""

import asyncio
import threading
from contextlib import suppress
from typing import Any, Final, Self

import grpc
import grpc.aio

from ludus.http2.calls import BROKEN, EOF
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import MAX_MESSAGE_BYTES, SERVICE, client_options
from ludus.websocket import WebSocketCall, WebSocketServer

CALL_SECONDS: Final = 0.5
"""How long calls may take when the door closes."""
HOST: Final = "127.0.0.1"


class WebSocketDoor:
    """Serves on a port of this machine, in a thread of its own. A context."""

    def __init__(self, address: str, port: int = 0) -> None:
        """`address` is the server's; where it assigns itself to a client, the client is led back to this door.

        `port`: 0 for any. Raises OSError if it is taken.
        """
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

    async def _join(self, request: bytes, call: WebSocketCall) -> bytes:
        call_unary: Any = self._channel.unary_unary
        try:
            response = pb.JoinResponse.FromString(
                await call_unary(f"{SERVICE}Join")(request, metadata=call.invocation_metadata())
            )
        except grpc.aio.AioRpcError as error:
            await call.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
        if response.assignment.address == self._behind:
            response.assignment.address = f"{HOST}:{self.port}"
        return response.SerializeToString()

    async def _connect(self, _: None, call: WebSocketCall) -> None:
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
