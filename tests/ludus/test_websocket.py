"""Calls over WebSockets: what a handler sees of them, and what a client sees of their ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from ludus import websocket
from ludus.http2.calls import EOF
from ludus.websocket import FAILED, WebSocketServer

SERVICE = "test.Service"
PROTOCOL = Subprotocol("ludus.v1")
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Handlers:
    """Echoes, and remembers how its calls ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.ended = asyncio.Event()
        self.metadata: list[dict[str, str]] = []
        methods: Any = {
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo),
            "Refuse": grpc.unary_unary_rpc_method_handler(self._refuse),
            "Fail": grpc.unary_unary_rpc_method_handler(self._fail),
            "Hold": grpc.unary_unary_rpc_method_handler(self._hold),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        self.generic = grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _echo(self, data: bytes, call: Any) -> bytes:
        self.metadata.append(dict(call.invocation_metadata()))
        assert call.peer().startswith("ipv4:127.0.0.1:")
        return data

    async def _refuse(self, data: bytes, call: Any) -> bytes:
        await call.abort(grpc.StatusCode.NOT_FOUND, "there is no such run", (("ludus-reason", "run_not_found"),))
        raise AssertionError

    async def _fail(self, data: bytes, call: Any) -> bytes:
        raise ZeroDivisionError(data)

    async def _hold(self, data: bytes, call: Any) -> bytes:
        await call.send_initial_metadata((("ludus-waits-bin", "no worker is free: ä".encode()),))
        try:
            await asyncio.Event().wait()
        finally:
            self._note("cancelled")
        return b""

    async def _stream(self, _: None, call: Any) -> None:
        try:
            while (data := await call.read()) is not EOF:
                await call.write(data)
            self._note("left")
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            self._note("broken")
            raise

    def _note(self, end: str) -> None:
        self.ends.append(end)
        self.ended.set()


class Service:
    """A server with `Handlers`."""

    def __init__(self, port: int, handlers: Handlers, server: WebSocketServer) -> None:
        self.port, self.handlers, self.server = port, handlers, server

    def dial(self, method: str = "Stream", **options: Any) -> connect:
        options = {"subprotocols": [PROTOCOL], "compression": None, "proxy": None, **options}
        return connect(f"ws://127.0.0.1:{self.port}/{SERVICE}/{method}", **options)

    async def call(self, method: str, data: bytes, **options: Any) -> tuple[list[str | bytes], int | None, str]:
        """Make a call; return all that came, with the code and the reason of the socket's end."""
        async with self.dial(method, **options) as client:
            await client.send("{}")
            await client.send(data)
            came, code = await drained(client)
            return came, code, client.close_reason or ""


@asynccontextmanager
async def serving(max_message_bytes: int = 1 << 16, origins: tuple[str, ...] = ()) -> AsyncIterator[Service]:
    handlers = Handlers()
    server = WebSocketServer(max_message_bytes, origins)
    server.add_generic_rpc_handlers((handlers.generic,))
    port = server.add_port("127.0.0.1", 0)
    await server.start()
    try:
        yield Service(port, handlers, server)
    finally:
        await server.stop(0.1)


def run(test: Callable[[Service], Awaitable[object]], loop: Any = asyncio.new_event_loop, **options: Any) -> None:
    async def body() -> None:
        async with serving(**options) as service, asyncio.timeout(30):
            await test(service)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(body())


async def drained(client: ClientConnection) -> tuple[list[str | bytes], int | None]:
    came: list[str | bytes] = []
    try:
        async for message in client:
            came.append(message)  # noqa: PERF401  what came before the end counts
    except ConnectionClosed:
        pass
    return came, client.close_code


@pytest.mark.parametrize("loop", LOOPS)
def test_a_unary_call_is_answered_and_closed(loop: Any) -> None:
    async def test(service: Service) -> None:
        async with service.dial("Echo") as client:
            await client.send('{"authorization": "Bearer t"}')
            await client.send(b"\x01\x02")
            assert await drained(client) == ([b"\x01\x02"], 1000)
        assert service.handlers.metadata == [{"authorization": "Bearer t"}]

    run(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_stream_goes_both_ways_until_the_client_closes_it(loop: Any) -> None:
    async def test(service: Service) -> None:
        async with service.dial() as client:
            await client.send("{}")
            for number in range(50):
                await client.send(bytes([number]))
            assert [await client.recv() for _ in range(50)] == [bytes([number]) for number in range(50)]
        await service.handlers.ended.wait()
        assert service.handlers.ends == ["left"]

    run(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_vanishes_breaks_its_stream(loop: Any) -> None:
    async def test(service: Service) -> None:
        client = await service.dial()
        await client.send("{}")
        await client.send(b"1")
        assert await client.recv() == b"1"
        client.transport.abort()
        await service.handlers.ended.wait()
        assert service.handlers.ends == ["broken"]

    run(test, loop)


def test_a_client_that_gives_up_cancels_its_unary_call() -> None:
    async def test(service: Service) -> None:
        async with service.dial("Hold") as client:
            await client.send("{}")
            await client.send(b"")
            held = json.loads(await client.recv())
            assert held == {"metadata": {"ludus-waits-bin": "no worker is free: ä"}}
        await service.handlers.ended.wait()
        assert service.handlers.ends == ["cancelled"]

    run(test)


@pytest.mark.parametrize(
    ("method", "status", "reason"),
    [
        ("Refuse", grpc.StatusCode.NOT_FOUND, "run_not_found"),
        ("Fail", grpc.StatusCode.UNKNOWN, "unknown"),
        ("Missing", grpc.StatusCode.UNIMPLEMENTED, "unimplemented"),
    ],
)
def test_a_failed_call_ends_with_its_status_in_words(method: str, status: grpc.StatusCode, reason: str) -> None:
    async def test(service: Service) -> None:
        (text,), code, said = await service.call(method, b"x")
        failure = json.loads(text)
        assert failure["status"] == status.name
        assert failure["details"]
        assert "ZeroDivision" not in failure["details"]
        assert (code, said) == (FAILED + status.value[0], reason)
        assert failure["metadata"] == ({"ludus-reason": reason} if method == "Refuse" else {})

    run(test)


@pytest.mark.parametrize(
    "first",
    ["", "no JSON", "[]", '{"a": 1}', "[" * 100_000, json.dumps({"ludus-ticket": "t" * 9000}), b"\x0a\x00", "\ud800"],
)
def test_a_first_message_that_is_no_metadata_is_refused(first: str | bytes) -> None:
    async def test(service: Service) -> None:
        async with service.dial() as client:
            await client.send(
                first.encode(errors="surrogatepass") if first == "\ud800" else first, text=first == "\ud800" or None
            )
            came, code = await drained(client)
            if first == "\ud800":  # the library knows what text is
                assert (came, code) == ([], 1007)
            else:
                assert code == FAILED + grpc.StatusCode.INVALID_ARGUMENT.value[0]
                assert "JSON object" in json.loads(came[0])["details"]

    run(test, max_message_bytes=1 << 20)


@pytest.mark.parametrize(
    ("origin", "listed", "admitted"),
    [
        (None, (), True),
        ("http://localhost:8000", (), True),
        ("https://127.0.0.1", (), True),
        ("http://[::1]:3000", (), True),
        ("https://game.example", (), False),
        ("https://game.example", ("https://game.example",), True),
        ("https://game.example:8443", ("https://game.example",), False),
        ("http://game.example", ("https://game.example",), False),
        ("https://localhost.game.example", (), False),
        ("http://127.0.0.1.nip.io", (), False),
        ("null", (), False),
        ("null", ("null",), True),
        ("https://anybody", ("*",), True),
        ("http://[", (), False),
    ],
)
def test_pages_of_this_machine_and_of_listed_origins_may_connect(
    origin: str | None, listed: tuple[str, ...], admitted: bool
) -> None:
    async def test(service: Service) -> None:
        came, code, said = await service.call("Echo", b"x", origin=origin)
        if admitted:
            assert (came, code) == ([b"x"], 1000)
        else:
            assert "LUDUS_GATEWAY__WEBSOCKET_ORIGINS" in json.loads(came[0])["details"]
            assert (code, said) == (FAILED + 7, "foreign_origin")

    run(test, origins=listed)


def test_other_subprotocols_and_plain_http_are_refused() -> None:
    async def test(service: Service) -> None:
        with pytest.raises(InvalidStatus) as refused:
            await service.dial(subprotocols=None)
        assert refused.value.response.status_code == 400
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 426")
        writer.close()

    run(test)


def test_a_message_above_the_limit_ends_its_own_socket_alone() -> None:
    async def test(service: Service) -> None:
        async with service.dial() as other, service.dial() as client:
            await other.send("{}")
            await client.send("{}")
            await client.send(bytes(2000))
            assert await drained(client) == ([], 1009)
            await other.send(bytes(1000))
            assert await other.recv() == bytes(1000)

    run(test, max_message_bytes=1000)


def test_fragments_are_one_message() -> None:
    async def test(service: Service) -> None:
        async with service.dial() as client:
            await client.send("{}")
            await client.send([b"ab", b"", b"c"])
            assert await client.recv() == b"abc"

    run(test)


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    """What waits for it is bounded: its next message is taken when the last answer has left."""

    async def test(service: Service) -> None:
        sent = 0
        client = await service.dial(max_size=None, max_queue=1)
        await client.send("{}")

        async def write_on() -> None:
            nonlocal sent
            while True:
                await client.send(bytes(1 << 20))
                sent += 1

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_on(), 2)
        assert sent < 60  # the buffers of both systems, and a few messages
        client.transport.abort()
        await service.handlers.ended.wait()

    run(test, max_message_bytes=2 << 20)


def test_a_silent_client_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HELLO_SECONDS", 0.05)

    async def test(service: Service) -> None:
        async with service.dial() as client:
            came, code = await drained(client)
            assert json.loads(came[0])["status"] == "DEADLINE_EXCEEDED"
            assert code == FAILED + 4

    run(test)


def test_a_peer_that_answers_no_ping_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "KEEPALIVE_SECONDS", 0.1)

    async def test(service: Service) -> None:
        client = await service.dial()
        await client.send("{}")
        client.transport.pause_reading()  # half open: it has everything, and says nothing
        await service.handlers.ended.wait()
        assert service.handlers.ends == ["broken"]
        client.transport.abort()

    run(test)


def test_a_server_that_stops_says_so() -> None:
    async def test(service: Service) -> None:
        async with service.dial() as client:
            await client.send("{}")
            await client.send(b"1")
            await client.recv()
            stopping = asyncio.ensure_future(service.server.stop(0.05))
            assert await drained(client) == ([], 1001)
            await stopping

    run(test)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200).map(lambda data: ("raw", data)),
            st.binary(max_size=200).map(lambda data: ("binary", data)),
            st.text(max_size=50).map(lambda text: ("text", text.encode(errors="replace"))),
            st.just(("metadata", b"{}")),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_any_bytes_end_their_own_socket_at_most(parts: list[tuple[str, bytes]], shakes_hands: bool) -> None:
    async def test(service: Service) -> None:
        if shakes_hands:
            client = await service.dial()
            for kind, data in parts:
                try:
                    if kind == "raw":
                        client.transport.write(data)
                    else:
                        await client.send(data, text=kind != "binary")
                except ConnectionClosed:
                    break
            client.transport.abort()
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(b"".join(data for _, data in parts))
            writer.close()
        assert await service.call("Echo", b"still there") == ([b"still there"], 1000, "")

    run(test)
