"""A peer that costs much ends its own connection, or stands still at a limit (RFC 9113, 10.5); others are served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import hpack
import pytest

from ludus.games.port import MOST_MESSAGE_BYTES
from ludus.http2 import frames
from ludus.http2.connection import CONNECTION_WINDOW, MOST_SETTINGS_BYTES, SETTINGS_COST
from ludus.http2.frames import ErrorCode, frame
from ludus.http2.server import Http2Server
from ludus.http2.stream import CALM_FRAMES
from tests.ludus.http2.serving import ECHO, MOST_BYTES, POUR, POURED, STREAM, WAIT, Methods, channel_to, run, serving
from tests.ludus.http2.test_connection import GREETING, PATIENCE, data, ends_its_own_connection, headers
from tests.waiting import never

MANY = int(CALM_FRAMES) + 200


def opened(method: str, amount: int) -> list[bytes]:
    """Return the frames that open so many calls. Their headers are the same, so the compressor writes them once."""
    block = hpack.Encoder().encode([(":method", "POST"), (":path", method), ("te", "trailers")])
    return [frame(frames.HEADERS, frames.END_HEADERS, 2 * index + 1, block) for index in range(amount)]


def reset(number: int) -> bytes:
    return frame(frames.RST_STREAM, 0, number, int(ErrorCode.CANCEL).to_bytes(4, "big"))


def window(number: int, more: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, number, more.to_bytes(4, "big"))


FLOODS: dict[str, bytes] = {
    "resets (10.5, CVE-2023-44487)": b"".join(
        begin + reset(2 * index + 1) for index, begin in enumerate(opened(STREAM, MANY))
    ),
    "resets of calls that have begun": b"".join(
        begin + data(b"x", 2 * index + 1) + reset(2 * index + 1) for index, begin in enumerate(opened(WAIT, MANY))
    ),
    "calls that the server breaks off: a compressed message": b"".join(
        begin + frame(frames.DATA, 0, 2 * index + 1, b"\1" + bytes(4))
        for index, begin in enumerate(opened(STREAM, MANY))
    ),
    "calls that the server breaks off: a window beyond the limit (6.9.1)": b"".join(
        begin + window(2 * index + 1, 2**31 - 1) for index, begin in enumerate(opened(STREAM, MANY))
    ),
    "PING (6.7)": frame(frames.PING, 0, 0, bytes(8)) * MANY,
    "SETTINGS (6.5)": frames.settings({}) * (MANY // int(SETTINGS_COST) + 1),
    "many settings at once": frames.settings({1: 4096}) + frame(frames.SETTINGS, 0, 0, bytes(MOST_SETTINGS_BYTES + 6)),
    "empty DATA (6.1)": headers(STREAM) + frame(frames.DATA, 0, 1) * MANY,
    "empty CONTINUATION (6.10)": headers(STREAM, 1, 0) + frame(frames.CONTINUATION, 0, 1) * MANY,
    "PRIORITY (5.3.2)": frame(frames.PRIORITY, 0, 1, bytes(5)) * MANY,
    "frames of unknown kinds (5.5)": frame(0x77, 0, 1) * MANY,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_frames_without_a_message_ends_its_own_connection(flood: bytes) -> None:
    await ends_its_own_connection(flood, ErrorCode.ENHANCE_YOUR_CALM)


async def test_a_client_that_leaves_may_reset_all_of_its_streams_at_once() -> None:
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = b"".join(opened(STREAM, 500))
        writer.write(GREETING + begun + b"".join(reset(2 * index + 1) for index in range(500)))
        writer.write(headers(ECHO, 1001) + data(b"goes on", 1001))
        received = b""
        async with asyncio.timeout(PATIENCE):
            while b"goes on" not in received:
                part = await reader.read(1 << 16)
                assert part, "the connection ended"
                received += part
        writer.close()


class Peer:
    """A client that keeps to the windows that it is given, as 6.9 demands, and remembers what came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.room = frames.DEFAULT_WINDOW
        self.ends: dict[int, list[tuple[bytes, bytes]]] = {}
        self.gone_away: bytes | None = None
        self.moved = asyncio.Event()
        self._reader = reader
        self._decoder = hpack.Decoder()

    async def listen(self) -> None:
        """Read frames until the server closes."""
        while True:
            try:
                head = await self._reader.readexactly(frames.HEADER_BYTES)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            number = int.from_bytes(head[5:9], "big")
            if head[3] == frames.WINDOW_UPDATE and number == 0:
                self.room += int.from_bytes(payload, "big")
            elif head[3] == frames.HEADERS:
                self.ends[number] = list(self._decoder.decode(payload, raw=True))
            elif head[3] == frames.GOAWAY:
                self.gone_away = payload
            self.moved.set()
        self.moved.set()

    async def send(self, number: int, content: bytes) -> None:
        """Send DATA in frames, as the connection's window allows."""
        for begin in range(0, len(content), 1 << 17):
            part = content[begin : begin + (1 << 17)]
            while self.room < len(part):
                self.moved.clear()
                await self.moved.wait()
            self.room -= len(part)
            self.writer.write(frame(frames.DATA, 0, number, part))
            await self.writer.drain()


@asynccontextmanager
async def peer_of(port: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    most = 2**30
    writer.write(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: most}) + window(0, most))
    peer = Peer(reader, writer)
    listening = asyncio.create_task(peer.listen())
    try:
        async with asyncio.timeout(PATIENCE):
            yield peer
    finally:
        listening.cancel()
        writer.transport.abort()


@pytest.mark.long
async def test_incomplete_messages_of_many_streams_take_no_more_than_the_connections_window() -> None:
    """404 MB by 100 streams, before: a stream whose message finds no room is ended, and the others go on."""
    async with serving() as (port, _), peer_of(port) as peer:
        piece = b"\0" + MOST_BYTES.to_bytes(4, "big") + bytes(1 << 21)
        streams = 100
        peer.writer.write(b"".join(opened(STREAM, streams)))
        for index in range(streams):
            await peer.send(2 * index + 1, piece)
        while len(peer.ends) < streams - (CONNECTION_WINDOW + MOST_BYTES) // (1 << 21):
            peer.moved.clear()
            await peer.moved.wait()
        assert all((b"grpc-status", b"8") in ended for ended in peer.ends.values()), "RESOURCE_EXHAUSTED"
        assert peer.gone_away is None


@pytest.mark.long
async def test_messages_that_nobody_reads_stop_the_peer_at_the_connections_window() -> None:
    async with serving() as (port, methods), peer_of(port) as peer:
        methods.may_read.clear()
        message = b"\0" + (1 << 20).to_bytes(4, "big") + bytes(1 << 20)
        peer.writer.write(b"".join(opened(STREAM, 100)))
        sent = 0

        async def pour() -> None:
            nonlocal sent
            for number in count(1, 2):
                await peer.send(number % 200, message)
                sent += 1

        pouring = asyncio.create_task(pour())
        while peer.room >= 1 << 17 or not sent:
            peer.moved.clear()
            await asyncio.wait({asyncio.ensure_future(peer.moved.wait()), pouring}, timeout=0.05)
        stood = sent
        assert stood <= (CONNECTION_WINDOW + MOST_BYTES) >> 20
        assert peer.gone_away is None
        methods.may_read.set()
        while sent < 2 * stood:  # it goes on once they are read
            await asyncio.wait({pouring}, timeout=0.01)
        pouring.cancel()
        await asyncio.wait({pouring})


async def test_answers_that_wait_for_a_window_without_end_end_the_connection() -> None:
    """A client that gives no window (6.9.2) and goes on asking: its answers are not kept without limit."""
    async with serving() as (port, _):
        size = 1 << 20
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
        end = asyncio.create_task(end_of(reader))
        for index in range((CONNECTION_WINDOW + MOST_BYTES) // size + 3):
            number = 2 * index + 1
            writer.write(headers(ECHO, number) + frame(frames.DATA, 0, number, b"\0" + size.to_bytes(4, "big")))
            for begin in range(0, size, 1 << 17):
                last = frames.END_STREAM if begin + (1 << 17) == size else 0
                writer.write(frame(frames.DATA, last, number, bytes(1 << 17)))
            try:
                await asyncio.wait_for(writer.drain(), PATIENCE)
            except ConnectionError:
                break
        async with asyncio.timeout(PATIENCE):
            assert await end in {int(ErrorCode.ENHANCE_YOUR_CALM), None}
        writer.close()


async def end_of(reader: asyncio.StreamReader) -> int | None:
    """Return the code of the GOAWAY that comes; None where the connection is reset, as bytes of ours were under way."""
    while True:
        try:
            head = await reader.readexactly(frames.HEADER_BYTES)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        except ConnectionError:
            return None
        if head[3] == frames.GOAWAY:
            return int.from_bytes(payload[4:8], "big")


async def test_a_client_that_reads_nothing_is_not_read_from() -> None:
    """Its answers would fill the memory otherwise: they wait in the transport."""
    async with serving() as (port, _):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(GREETING + window(0, 2**30))
        asked = 0
        message = bytes(60_000)

        async def ask() -> None:
            nonlocal asked
            while True:
                writer.write(headers(ECHO, 2 * asked + 1) + data(message, 2 * asked + 1))
                asked += 1
                await writer.drain()

        asking = asyncio.create_task(ask())
        before = -1
        while asked != before:  # until nothing moves: the kernel's buffers are full on both sides
            before = asked
            await asyncio.wait({asking}, timeout=0.5)
        assert not asking.done()
        assert asked * len(message) < 64 << 20
        asking.cancel()
        writer.transport.abort()
        async with channel_to(port) as channel:
            assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"


@pytest.mark.long
async def test_a_server_that_stops_ends_the_connection_of_a_client_that_reads_nothing() -> None:
    """Its loop cannot be closed before: uvloop's waits without end for a socket that has still something to send."""
    methods, server = Methods(), Http2Server(MOST_BYTES)
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    most = 2**30
    windows = frames.settings({frames.INITIAL_WINDOW_SIZE: most}) + window(0, most)
    writer.write(frames.PREFACE + windows + b"".join(opened(POUR, 1)))
    await asyncio.to_thread(never, lambda: methods.poured == POURED, "the kernel's buffers took everything", 1.0)
    assert methods.poured > 0
    await server.stop(None)
    assert not server.connections
    writer.transport.abort()


def test_a_games_port_that_takes_messages_of_any_size_has_the_largest_window_of_the_protocol() -> None:
    async def greeting() -> None:
        server = Http2Server(MOST_MESSAGE_BYTES)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readuntil(window(0, frames.LARGEST_WINDOW - frames.DEFAULT_WINDOW))
        writer.close()
        await server.stop(None)

    run(greeting)
