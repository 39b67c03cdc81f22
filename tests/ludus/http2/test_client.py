"""Our channel, to gRPC's own server and to ours: one connection, and what becomes of calls when it or they end."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest

from ludus.http2.client import Http2Channel
from tests.ludus.http2.serving import (
    ECHO,
    MOST_BYTES,
    PATIENCE,
    STREAM,
    WAIT,
    Methods,
    own_channel_to,
    serving,
    serving_by_grpc,
)

Serving: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[int, Methods]]]


both = pytest.mark.parametrize("serving", [serving, serving_by_grpc], ids=["ours", "grpc"])


@both
async def test_a_thousand_calls_reuse_the_connection(serving: Serving) -> None:
    async with serving() as (port, _), own_channel_to(port) as channel:
        for number in range(1000):
            assert await channel.unary_unary(ECHO)(b"%d" % number) == b"%d" % number


@both
@pytest.mark.parametrize("way", ["cancel", "task", "connection"])
async def test_a_call_that_is_given_up_is_cancelled_at_the_server(serving: Serving, way: str) -> None:
    async with serving() as (port, methods):
        async with own_channel_to(port) as channel:
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


async def _result(call: Any) -> Any:
    return await call


@both
async def test_a_server_that_goes_away_fails_calls_as_grpc_would_say_it(serving: Serving) -> None:
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


@both
async def test_an_answer_that_is_too_large_is_refused(serving: Serving) -> None:
    async with serving() as (port, _), own_channel_to(port, 1000) as channel:
        assert await channel.unary_unary(ECHO)(bytes(1000)) == bytes(1000)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(ECHO)(bytes(1001))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await channel.unary_unary(ECHO)(b"next") == b"next"


async def test_a_port_where_nothing_listens_is_tried_until_the_caller_gives_up_or_somebody_listens() -> None:
    async with serving() as (port, _):
        pass
    channel = Http2Channel(f"127.0.0.1:{port}", MOST_BYTES)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(channel.channel_ready(), 0.3)
    with pytest.raises(RuntimeError, match="channel_ready"):
        channel.unary_unary(ECHO)(b"")
