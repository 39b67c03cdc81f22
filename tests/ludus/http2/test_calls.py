"""Calls between our channel and gRPC's, and our server and gRPC's: which one is at either end makes no difference."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest

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
    Methods,
    channel_to,
    own_channel_to,
    serving,
    serving_by_grpc,
)
from tests.waiting import never

Serving: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[int, Methods]]]
Opening: TypeAlias = Callable[[int], AbstractAsyncContextManager[Any]]

pairs = pytest.mark.parametrize(
    ("serving", "channel_to"),
    [(serving, own_channel_to), (serving_by_grpc, own_channel_to), (serving, channel_to)],
    ids=["ours to ours", "ours to grpc", "grpc to ours"],
)


@pairs
@pytest.mark.parametrize("size", [0, 1000, 16_384 - 5, 16_384, 65_535, 65_536, MOST_BYTES])
async def test_messages_of_every_size_come_back_as_they_went(serving: Serving, channel_to: Opening, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with serving() as (port, _), channel_to(port) as channel:
        for _each in range(3):
            assert await channel.unary_unary(ECHO)(data) == data


@pairs
async def test_metadata_goes_both_ways_as_text_and_as_bytes(serving: Serving, channel_to: Opening) -> None:
    async with serving() as (port, _), channel_to(port) as channel:
        for said in ("a", "b" * 300, "a"):
            answer = channel.unary_unary(METADATA)(b"", metadata=(("said", said), ("said-bin", b"\0\1\xfe")))
            assert (await answer).startswith(b"ipv4:127.0.0.1:")
            trailing = dict(await answer.trailing_metadata())
            assert (trailing["heard"], trailing["heard-bin"]) == (said, b"\0\1\xfe")


@pairs
@pytest.mark.parametrize(
    ("method", "status", "details"),
    [
        (ABORT, grpc.StatusCode.NOT_FOUND, "100 % gone: ä, \n and 木"),
        (FAIL, grpc.StatusCode.UNKNOWN, "a handler's own mistake"),
        ("/tests.Service/Nothing", grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ],
)
async def test_a_call_that_fails_says_why(
    serving: Serving, channel_to: Opening, method: str, status: grpc.StatusCode, details: str
) -> None:
    async with serving() as (port, _), channel_to(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(method)(details.encode())
        assert error.value.code() is status
        assert details in str(error.value.details())
        if method == ABORT:
            trailing: Any = error.value.trailing_metadata()
            assert (dict(trailing)["why"], dict(trailing)["proof-bin"]) == ("gone", b"\0\xff")
        assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"


@pairs
async def test_a_stream_gives_back_every_message_in_its_order_and_ends_with_its_client(
    serving: Serving, channel_to: Opening
) -> None:
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


@pairs
async def test_who_does_not_read_stops_the_other_side(serving: Serving, channel_to: Opening) -> None:
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
