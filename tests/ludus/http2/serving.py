"""Servers whose methods do what tests ask for, and channels to them: of `ludus.http2`, and of gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import uvloop

from ludus.http2.client import Http2Channel
from ludus.http2.server import Http2Server

MOST_BYTES = 8 << 20
PATIENCE = 60.0
ECHO, FAIL, ABORT, WAIT, METADATA, STREAM, POUR = (
    f"/tests.Service/{name}" for name in ("Echo", "Fail", "Abort", "Wait", "Metadata", "Stream", "Pour")
)
POURED = 64
"""Messages of 1 MiB that `Pour` sends."""
EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009  the type stubs do not know it


def run(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test under asyncio's own event loop, and under uvloop, which collectors have where they can."""
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(call())


class Methods(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Counts what happened to its calls."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.poured = 0
        self.read = 0
        self.may_read = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the method's handler."""
        name = str(details.method).rpartition("/")[2].lower()
        method = getattr(self, f"_{name}", None)
        if method is None:
            return None
        if name in ("stream", "pour"):
            return grpc.stream_stream_rpc_method_handler(method)
        return grpc.unary_unary_rpc_method_handler(method)

    async def _echo(self, data: bytes, _: Any) -> bytes:
        return data

    async def _fail(self, _: bytes, __: Any) -> bytes:
        raise ValueError("a handler's own mistake")

    async def _abort(self, data: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, data.decode(), (("why", "gone"), ("proof-bin", b"\0\xff")))

    async def _wait(self, _: bytes, __: Any) -> bytes:
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _metadata(self, _: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        context.set_trailing_metadata((("heard", metadata["said"]), ("heard-bin", metadata["said-bin"])))
        return str(context.peer()).encode()

    async def _stream(self, _: Any, context: Any) -> None:
        await asyncio.wait([asyncio.ensure_future(self.may_read.wait())])
        try:
            while (data := await context.read()) is not EOF:
                self.read += 1
                await context.write(data)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _pour(self, _: Any, context: Any) -> None:
        for _each in range(POURED):
            await context.write(bytes(1 << 20))
            self.poured += 1


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, Methods]]:
    """Serve on a port of 127.0.0.1; return it, and the methods."""
    methods = Methods()
    methods.may_read.set()
    server = Http2Server(MOST_BYTES)
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port, methods
    finally:
        await server.stop(None)


@asynccontextmanager
async def serving_by_grpc() -> AsyncIterator[tuple[int, Methods]]:
    """Serve the methods of `serving` with gRPC's server."""
    methods = Methods()
    methods.may_read.set()
    options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port, methods
    finally:
        await server.stop(None)


@asynccontextmanager
async def own_channel_to(port: int, most_bytes: int = MOST_BYTES) -> AsyncIterator[Http2Channel]:
    """Open a channel of `ludus.http2`."""
    channel = Http2Channel(f"127.0.0.1:{port}", most_bytes)
    await asyncio.wait_for(channel.channel_ready(), PATIENCE)
    yield channel
    await channel.close()


@asynccontextmanager
async def channel_to(port: int) -> AsyncIterator[Any]:
    """Open a channel of gRPC that takes large messages."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # Else channels of a process share a connection's back-off: that of a test whose server had this port before.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        yield channel
