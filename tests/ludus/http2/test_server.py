"""Calls of gRPC's own clients, which every game and every simulator has."""

import asyncio
import threading
from typing import Any

import grpc
import grpc.aio
import pytest

from ludus.http2.server import Http2Server
from tests.ludus.http2.serving import ECHO, MOST_BYTES, PATIENCE, WAIT, channel_to, serving


async def test_calls_of_a_connection_are_answered_beside_each_other() -> None:
    async with serving() as (port, _), channel_to(port) as channel:
        waiting = channel.unary_unary(WAIT)(b"")
        messages = [str(number).encode() * number for number in range(500)]
        assert await asyncio.gather(*(channel.unary_unary(ECHO)(each) for each in messages)) == messages
        assert not waiting.done()
        waiting.cancel()


async def test_the_blocking_client_is_served() -> None:
    async with serving() as (port, _):

        def play() -> list[bytes]:
            channel: Any  # the type stubs want serializers
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                return [channel.unary_unary(ECHO)(str(number).encode()) for number in range(200)]

        assert await asyncio.to_thread(play) == [str(number).encode() for number in range(200)]


async def test_a_message_that_is_too_large_is_refused_and_the_next_one_taken() -> None:
    async with serving() as (port, _), channel_to(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(ECHO)(bytes(MOST_BYTES + 1))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MOST_BYTES + 1) in str(error.value.details())
        assert await channel.unary_unary(ECHO)(b"next") == b"next"


async def test_a_compressed_message_is_refused_with_a_sentence() -> None:
    async with serving() as (port, _):
        address = f"127.0.0.1:{port}"
        channel: Any
        async with grpc.aio.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(ECHO)(bytes(10_000))
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "compressed" in str(error.value.details())


@pytest.mark.parametrize("way", ["cancel", "deadline", "connection"])
async def test_a_call_that_its_client_gives_up_is_cancelled(way: str) -> None:
    async with serving() as (port, methods):
        async with channel_to(port) as channel:
            waiting = channel.unary_unary(WAIT)(b"", timeout=0.3 if way == "deadline" else None)
            await channel.unary_unary(ECHO)(b"the other one has come")
            if way == "cancel":
                waiting.cancel()
            if way != "connection":
                await asyncio.wait_for(methods.cancelled.wait(), PATIENCE)
        await asyncio.wait_for(methods.cancelled.wait(), PATIENCE)


async def test_a_stopping_server_lets_calls_end_and_refuses_new_ones() -> None:
    server = Http2Server(MOST_BYTES)
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(data: bytes, _: object) -> bytes:
        began.set()
        await may_end.wait()
        return data

    handlers = {"Slow": grpc.unary_unary_rpc_method_handler(slow)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with channel_to(port) as channel:
        waiting = channel.unary_unary("/tests/Slow")(b"in time")
        await began.wait()
        stopping = asyncio.ensure_future(server.stop(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/tests/Slow")(b"too late")
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        may_end.set()
        assert await waiting == b"in time"
        await stopping


def test_a_taken_port_and_an_address_of_the_network_are_refused() -> None:
    server = Http2Server(MOST_BYTES)
    port = server.add_insecure_port("127.0.0.1:0")
    with pytest.raises(RuntimeError, match=f"can't listen on 127.0.0.1:{port}"):
        Http2Server(MOST_BYTES).add_insecure_port(f"127.0.0.1:{port}")
    with pytest.raises(ValueError, match="loopback"):
        server.add_insecure_port("0.0.0.0:0")
    asyncio.run(server.stop(None))


async def test_servers_that_share_a_port_are_both_served() -> None:
    first, second = (Http2Server(MOST_BYTES, share_port=True) for _ in range(2))
    port = first.add_insecure_port("127.0.0.1:0")
    assert second.add_insecure_port(f"127.0.0.1:{port}") == port
    answers: set[str] = set()
    for name, server in (("first", first), ("second", second)):

        async def say(_: bytes, __: object, name: str = name) -> bytes:
            return name.encode()

        handlers = {"Say": grpc.unary_unary_rpc_method_handler(say)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests", handlers),))
        await server.start()

    def ask() -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channel: Any
        while len(answers) < 2:
            with grpc.insecure_channel(f"127.0.0.1:{port}", own) as channel:
                answers.add(channel.unary_unary("/tests/Say")(b"").decode())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    await asyncio.wait_for(asyncio.to_thread(asking.join), PATIENCE)
    assert answers == {"first", "second"}
    await asyncio.gather(first.stop(None), second.stop(None))
