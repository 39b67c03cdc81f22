"""What breaks HTTP/2 ends its own connection, with a reason; nobody else notices."""

import asyncio

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.http2 import frames
from ludus.http2.connection import MOST_HEADER_BYTES, MOST_STREAMS, MOST_UNREAD_ANSWERS, OUR_MAX_FRAME, STREAM_WINDOW
from ludus.http2.frames import ErrorCode, frame
from tests.ludus.http2.serving import ECHO, STREAM, WAIT, channel_to, run, serving

PATIENCE = 30.0
GREETING = frames.PREFACE + frames.settings({})


def headers(method: str, number: int = 1, flags: int = frames.END_HEADERS) -> bytes:
    """Return the frame that opens a call."""
    block = hpack.Encoder().encode([(":method", "POST"), (":path", method), ("te", "trailers")])
    return frame(frames.HEADERS, flags, number, block)


def data(message: bytes, number: int = 1, flags: int = frames.END_STREAM) -> bytes:
    """Return the frame with a call's message."""
    return frame(frames.DATA, flags, number, b"\0" + len(message).to_bytes(4, "big") + message)


async def answer_to(port: int, sent: bytes) -> list[tuple[int, int, bytes]]:
    """Send bytes; return kind, stream and payload of the frames that come until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    received = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while more := await reader.read(1 << 16):
                received += more
    except ConnectionError:  # the server closed while bytes of ours were on their way
        pass
    writer.close()
    found = []
    while len(received) >= frames.HEADER_BYTES:
        end = frames.HEADER_BYTES + int.from_bytes(received[:3], "big")
        found.append((received[3], int.from_bytes(received[5:9], "big"), received[frames.HEADER_BYTES : end]))
        received = received[end:]
    return found


VIOLATIONS: dict[str, tuple[bytes, ErrorCode]] = {
    "a frame above the limit": (
        (OUR_MAX_FRAME + 1).to_bytes(3, "big") + bytes([frames.DATA, 0, 0, 0, 0, 1]),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "headers that no table explains": (
        frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff" * 8),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a stream with an even number": (headers(ECHO, 2), ErrorCode.PROTOCOL_ERROR),
    "headers interrupted by another frame": (headers(ECHO, 1, 0) + data(b"x"), ErrorCode.PROTOCOL_ERROR),
    "headers without an end": (
        headers(ECHO, 1, 0) + frame(frames.CONTINUATION, 0, 1, bytes(1 << 14)) * (MOST_HEADER_BYTES // (1 << 14) + 1),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "continued headers that never began": (frame(frames.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
    "more padding than payload": (
        headers(ECHO) + frame(frames.DATA, frames.PADDED, 1, b"\x09abc"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "half a setting": (frame(frames.SETTINGS, 0, 0, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    "a window beyond the limit": (
        frames.settings({frames.INITIAL_WINDOW_SIZE: 2**32 - 1}),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "the connection's window beyond the limit": (
        frame(frames.WINDOW_UPDATE, 0, 0, (2**31 - 1).to_bytes(4, "big")),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a window that grows by nothing": (frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a size of frames that is none": (frames.settings({frames.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
    "a promise of a push": (frame(frames.PUSH_PROMISE, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a header that is no text": (
        frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.Encoder().encode([(b":path", b"\xff")])),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "more than a stream's window": (
        headers(STREAM) + data(bytes(200_000), 1, 0) * (STREAM_WINDOW // 200_000 + 1),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
}


async def ends_its_own_connection(sent: bytes, code: ErrorCode) -> None:
    """Check that a server closes the connection that sent this, with a reason, and serves others on."""
    async with serving() as (port, methods), channel_to(port) as channel:
        methods.may_read.clear()
        other = channel.unary_unary(WAIT)(b"")
        await channel.unary_unary(ECHO)(b"")
        kind, _, payload = (await answer_to(port, GREETING + sent))[-1]
        assert kind == frames.GOAWAY
        assert int.from_bytes(payload[4:8], "big") == code
        assert len(payload) > 8, "there is a sentence"
        assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"
        assert not other.done()
        other.cancel()


@pytest.mark.parametrize(("sent", "code"), VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_violation_ends_its_own_connection_with_the_reason(sent: bytes, code: ErrorCode) -> None:
    await ends_its_own_connection(sent, code)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"\0" * 24])
async def test_a_client_of_another_protocol_is_sent_away(sent: bytes) -> None:
    async with serving() as (port, _):
        assert {kind for kind, _, _ in await answer_to(port, sent)} <= {frames.SETTINGS, frames.WINDOW_UPDATE}


async def test_pings_without_end_from_a_client_that_reads_nothing_end_its_connection() -> None:
    async with serving() as (port, _):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(GREETING)
        pings = frame(frames.PING, 0, 0, bytes(8)) * MOST_UNREAD_ANSWERS

        async def ping() -> None:
            while True:
                writer.write(pings)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ping(), PATIENCE)
        async with channel_to(port) as channel:
            assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"


@pytest.mark.long
async def test_a_stream_beyond_the_limit_of_a_connection_is_refused() -> None:
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened = [headers(STREAM, 2 * index + 1) for index in range(MOST_STREAMS + 1)]
        writer.write(GREETING + b"".join(opened))
        last = 2 * MOST_STREAMS + 1
        refused = frame(frames.RST_STREAM, 0, last, int(ErrorCode.REFUSED_STREAM).to_bytes(4, "big"))
        received = b""
        async with asyncio.timeout(PATIENCE):
            while refused not in received:
                received += await reader.read(1 << 16)
        assert received.count(refused[3:5] + b"\0\0") == 1, "the others are served"
        writer.close()


async def test_frames_in_pieces_are_read_as_whole_ones() -> None:
    sent = GREETING + headers(ECHO) + data(b"in pieces") + frame(frames.PING, 0, 0, b"12345678")
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in sent:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        received = b""
        async with asyncio.timeout(PATIENCE):
            while b"in pieces" not in received or b"12345678" not in received:
                received += await reader.read(1 << 16)
        writer.close()


async def test_a_method_without_a_message_is_answered_with_a_status() -> None:
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING + headers(ECHO, 1, frames.END_HEADERS | frames.END_STREAM))
        writer.write_eof()
        answered: list[object] = []
        async with asyncio.timeout(PATIENCE):
            while header := await reader.read(frames.HEADER_BYTES):
                payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
                if header[3] == frames.HEADERS:
                    answered += hpack.Decoder().decode(payload)
        writer.close()
        assert ("grpc-message", "the call ended without a message") in answered


_FRAMES = st.builds(
    frame,
    st.integers(0, 10),
    st.sampled_from([0, 1, 4, 5, 8, 9, 0x20, 0x2D, 0xFF]),
    st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
    st.one_of(st.binary(max_size=64), st.sampled_from([headers(ECHO)[9:], headers(STREAM)[9:], data(b"x")[9:]])),
)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(st.lists(_FRAMES, min_size=1, max_size=20))
def test_frames_at_random_never_stop_the_server(sent: list[bytes]) -> None:
    async def call() -> None:
        failures: list[object] = []

        def note(_: object, context: dict[str, object]) -> None:
            if "PollerCompletionQueue" not in str(context["message"]):  # gRPC's, of the loop of an earlier example
                failures.append(context)

        asyncio.get_running_loop().set_exception_handler(note)
        async with serving() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GREETING + b"".join(sent))
            writer.write_eof()
            async with asyncio.timeout(PATIENCE):
                try:
                    while await reader.read(1 << 16):
                        pass
                except ConnectionError:
                    pass
            writer.close()
            async with channel_to(port) as channel:
                assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"
        assert not failures

    run(call)
