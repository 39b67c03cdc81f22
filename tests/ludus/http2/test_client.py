"""Calls of our channel, to gRPC's own server and to ours: which one answers makes no difference."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest

from ludus.http2.client import Http2Channel
from ludus.http2.connection import STREAM_WINDOW
from tests.ludus.http2.serving import (
    ABORT,
    ECHO,
    EOF,
    FAIL,
    METADATA,
    MOST_BYTES,
    POUR,
    POURED,
    STREAM,
    WAIT,
    Methods,
    run,
    serving,
)
from tests.waiting import never

PATIENCE = 60.0
Serving: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[int, Methods]]]


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


both = pytest.mark.parametrize("serving", [serving, serving_by_grpc], ids=["ours", "grpc"])


@asynccontextmanager
async def channel_to(port: int, most_bytes: int = MOST_BYTES) -> AsyncIterator[Http2Channel]:
    """Connect."""
    channel = Http2Channel(f"127.0.0.1:{port}", most_bytes)
    await asyncio.wait_for(channel.channel_ready(), PATIENCE)
    yield channel
    await channel.close()


@both
@pytest.mark.parametrize("size", [0, 1, 16_384 - 5, 65_536, 1 << 20, MOST_BYTES])
def test_messages_of_every_size_come_back_as_they_went(serving: Serving, size: int) -> None:
    async def call() -> None:
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        async with serving() as (port, _), channel_to(port) as channel:
            for _each in range(3):
                assert await channel.unary_unary(ECHO)(data) == data

    run(call)


@both
def test_a_thousand_calls_reuse_the_connection(serving: Serving) -> None:
    async def call() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            for number in range(1000):
                assert await channel.unary_unary(ECHO)(b"%d" % number) == b"%d" % number

    run(call)


@both
def test_metadata_goes_both_ways_as_text_and_as_bytes(serving: Serving) -> None:
    async def call() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            for said in ("a", "b" * 300, "a"):
                answer = channel.unary_unary(METADATA)(b"", metadata=(("said", said), ("said-bin", b"\0\1\xfe")))
                assert (await answer).startswith(b"ipv4:127.0.0.1:")
                trailing = dict(await answer.trailing_metadata())
                assert (trailing["heard"], trailing["heard-bin"]) == (said, b"\0\1\xfe")

    run(call)


@both
@pytest.mark.parametrize(
    ("method", "status", "details"),
    [
        (ABORT, grpc.StatusCode.NOT_FOUND, "100 % gone: ä and 木"),
        (FAIL, grpc.StatusCode.UNKNOWN, "a handler's own mistake"),
        ("/tests.Service/Nothing", grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ],
)
def test_a_call_that_fails_says_why(serving: Serving, method: str, status: grpc.StatusCode, details: str) -> None:
    async def call() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(method)(details.encode())
            assert error.value.code() is status
            assert details in str(error.value.details())
            if method == ABORT:
                trailing: Any = error.value.trailing_metadata()
                assert (dict(trailing)["why"], dict(trailing)["proof-bin"]) == ("gone", b"\0\xff")
            assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"

    run(call)


@both
def test_a_stream_gives_back_every_message_in_its_order_and_ends_with_its_client(serving: Serving) -> None:
    async def call() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            stream = channel.stream_stream(STREAM)()
            sizes = [0, 1, 5, 100_000, 3, 2 << 20, 7] * 10

            async def send() -> None:
                for number, size in enumerate(sizes):
                    await stream.write(bytes([number]) * size)
                await stream.done_writing()

            sending = asyncio.ensure_future(send())
            for number, size in enumerate(sizes):
                assert await stream.read() == bytes([number]) * size
            await sending
            assert await stream.read() is EOF
            assert stream.done()

    run(call)


@both
@pytest.mark.parametrize("way", ["cancel", "task", "connection"])
def test_a_call_that_is_given_up_is_cancelled_at_the_server(serving: Serving, way: str) -> None:
    async def call() -> None:
        async with serving() as (port, methods):
            async with channel_to(port) as channel:
                waiting = channel.unary_unary(WAIT)(b"")
                task = asyncio.ensure_future(_result(waiting))
                await channel.unary_unary(ECHO)(b"the other one has come")
                if way == "cancel":
                    assert waiting.cancel()
                    assert not waiting.cancel(), "it is over"
                elif way == "task":
                    task.cancel()
                if way != "connection":
                    await asyncio.wait_for(methods.cancelled.wait(), PATIENCE)
            await asyncio.wait_for(methods.cancelled.wait(), PATIENCE)
            await asyncio.wait([task], timeout=PATIENCE)
            status = None if task.cancelled() else task.exception()
            wanted = {"cancel": grpc.StatusCode.CANCELLED, "connection": grpc.StatusCode.UNAVAILABLE}.get(way)
            assert (status.code() if isinstance(status, grpc.aio.AioRpcError) else None) is wanted

    run(call)


async def _result(call: Any) -> Any:
    return await call


@both
def test_a_server_that_goes_away_fails_calls_as_grpc_would_say_it(serving: Serving) -> None:
    async def call() -> None:
        async with serving() as (port, _):
            channel = Http2Channel(f"127.0.0.1:{port}", MOST_BYTES)
            await channel.channel_ready()
            stream = channel.stream_stream(STREAM)()
            await stream.write(b"x")
            assert await stream.read() == b"x"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.write(b"y")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(ECHO)(b"later")
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        await channel.close()

    run(call)


@both
def test_an_answer_that_is_too_large_is_refused(serving: Serving) -> None:
    async def call() -> None:
        async with serving() as (port, _), channel_to(port, 1000) as channel:
            assert await channel.unary_unary(ECHO)(bytes(1000)) == bytes(1000)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(ECHO)(bytes(1001))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await channel.unary_unary(ECHO)(b"next") == b"next"

    run(call)


@both
def test_who_does_not_read_stops_the_other_side(serving: Serving) -> None:
    async def call() -> None:
        async with serving() as (port, methods), channel_to(port) as channel:
            pouring = channel.stream_stream(POUR)()
            methods.may_read.clear()
            stream = channel.stream_stream(STREAM)()
            count = 4 * STREAM_WINDOW // (1 << 20)
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _each in range(count):
                    await stream.write(bytes(1 << 20))
                    sent += 1
                await stream.done_writing()

            sending = asyncio.ensure_future(send())
            went_on = "who writes went on"
            await asyncio.to_thread(never, lambda: sent == count or methods.poured == POURED, went_on, 1.0)
            methods.may_read.set()
            for _each in range(count):
                await stream.read()
            await sending
            for _each in range(POURED):
                await pouring.read()
            assert await pouring.read() is EOF

    run(call)


def test_a_port_where_nothing_listens_is_tried_until_the_caller_gives_up_or_somebody_listens() -> None:
    async def call() -> None:
        async with serving() as (port, _):
            pass
        channel = Http2Channel(f"127.0.0.1:{port}", MOST_BYTES)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.channel_ready(), 0.3)
        with pytest.raises(RuntimeError, match="channel_ready"):
            channel.unary_unary(ECHO)(b"")

    run(call)
