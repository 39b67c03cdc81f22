"""An edge collector whose network is slower than its games: compressed where that pays, bounded, and it says so.

The other end is a server that reads when the test lets it; in between are gRPC's own windows.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import numpy as np
import pytest

from ludus.collector import messages
from ludus.collector.arena import Arena
from ludus.collector.carriers import stream
from ludus.collector.carriers.columns import gather
from ludus.collector.carriers.frames import FrameAssembler
from ludus.collector.carriers.stream import EdgeConnection
from ludus.collector.channel import Frame
from ludus.collector.messages import Kind
from ludus.collector.segments import SegmentEnd, Segments
from ludus.protocol import collector_pb2 as pb
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.segments import Segment, columns_of

METHOD = "/tests.Slow/Collect"
SPEC = BehaviorSpec("Seer", (ObservationSpec((3, 40, 40), "picture", "uint8"),), ActionSpec(1))
STEPS = 64
PICTURE = 0
"""Number of the column of pictures."""
PATIENCE = 20.0


class Server:
    """Reads a stream once `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.frames: list[Frame] = []
        self.compressed: list[set[int]] = []
        """The numbers of the columns, for each frame of segments."""
        self.size = 0

    async def collect(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await self.reads.wait()
        frames, parts = FrameAssembler(), bytearray()
        while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            self.size += len(message)
            part = pb.CollectorPart.FromString(message)
            parts += part.data
            if not part.more:
                whole = pb.CollectorFrame.FromString(bytes(parts))
                if whole.kind == Kind.SEGMENTS:
                    self.compressed.append(set(whole.compressed))
                parts.clear()
            frame = frames.take(message)
            if frame is not None:
                self.frames.append(frame)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Server, EdgeConnection]]:
    server, end = grpc.aio.server(), Server()
    handler = grpc.stream_stream_rpc_method_handler(end.collect)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Slow", {"Collect": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        EdgeConnection(channel.stream_stream(METHOD)()) as connection,
    ):
        yield end, connection
        end.reads.set()
    await server.stop(0)


def played(work: Callable[[Server, EdgeConnection], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE), connected() as (server, connection):
            await work(server, connection)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)  # allow: sleep, because it looks, in the event loop, until `played` gives up


def segment(arena: Arena, pixels: np.ndarray) -> Segments:
    """One segment in the arena's first blocks."""
    rows = arena.layout.rows
    blocks = tuple(range(-(-STEPS // rows)))
    segments = columns_of([Segment(0, 1, 0, 0, 0, STEPS, 0, SegmentEnd.CUT, blocks)])
    arena.observations[0][arena.rows_of(segments)] = pixels
    return segments


def sky() -> np.ndarray:
    """Pictures as games have them: large parts of one colour."""
    picture = np.zeros((STEPS, 3, 40, 40), np.uint8)
    picture[:, :, 20:] = 200
    return picture


def noise() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (STEPS, 3, 40, 40), np.uint8)


def contents(server: Server) -> list[bytes]:
    return [frame.contents[0] for frame in server.frames if frame.kind == Kind.SEGMENTS]


def test_pictures_are_compressed_while_the_network_is_slower_and_come_out_the_same() -> None:
    arena = Arena.create(SPEC, 4 * STEPS)
    segments = segment(arena, sky())
    one = STEPS * 3 * 40 * 40

    async def work(server: Server, connection: EdgeConnection) -> None:
        for _ in range(16):
            connection.deliver(0, arena, segments)
        server.reads.set()
        await until(lambda: len(server.frames) == 16)
        assert connection.waiting == 0
        behind = -(-stream.BEHIND // one)
        assert all(PICTURE in numbers for numbers in server.compressed[:8])
        assert not any(PICTURE in numbers for numbers in server.compressed[-behind + 1 :]), "it has caught up"
        assert server.size < 16 * one / 3
        (same,) = set(contents(server))
        assert same.startswith(sky().tobytes())

    played(work)


def test_a_network_that_keeps_up_is_sent_pictures_as_they_are() -> None:
    arena = Arena.create(SPEC, 4 * STEPS)
    segments = segment(arena, sky())

    async def work(server: Server, connection: EdgeConnection) -> None:
        server.reads.set()
        for count in range(1, 9):
            connection.deliver(0, arena, segments)
            await until(lambda count=count: len(server.frames) == count)  # type: ignore[misc]
        assert not any(PICTURE in numbers for numbers in server.compressed)

    played(work)


def test_what_cannot_be_compressed_goes_as_it_is() -> None:
    arena = Arena.create(SPEC, 4 * STEPS)
    segments = segment(arena, noise())

    async def work(server: Server, connection: EdgeConnection) -> None:
        for _ in range(16):
            connection.deliver(0, arena, segments)
        server.reads.set()
        await until(lambda: len(server.frames) == 16)
        assert not any(PICTURE in numbers for numbers in server.compressed)
        assert set(contents(server)) == {contents(server)[0]}
        assert contents(server)[0].startswith(noise().tobytes())

    played(work)


def test_columns_that_hardly_change_are_always_compressed_and_come_out_the_same() -> None:
    spec = BehaviorSpec("Walker", (ObservationSpec((8,)),), ActionSpec(2))
    arena = Arena.create(spec, 2048)
    blocks = tuple(range(2048 // arena.layout.rows))
    segments = columns_of([Segment(0, 1, 0, 0, 0, 2048, 0, SegmentEnd.CUT, blocks)])
    rows = arena.rows_of(segments)
    arena.observations[0][rows] = np.random.default_rng(1).normal(size=(2048, 8))
    arena.versions[rows], arena.ticks[rows] = 7, np.arange(2048)
    whole = gather(arena, segments)
    names = [column.name for column in arena.layout.columns()]

    async def work(server: Server, connection: EdgeConnection) -> None:
        server.reads.set()
        connection.deliver(0, arena, segments)
        await until(lambda: len(server.frames) == 1)
        (numbers,) = server.compressed
        assert {"versions", "ticks", "group_rewards"} <= {names[number] for number in numbers}
        assert 0 not in numbers
        assert list(server.frames[0].contents) == whole
        assert server.size < 0.85 * sum(map(len, whole))

    played(work)


def test_beyond_the_limit_games_wait_the_run_is_told_first_and_they_play_on_at_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MOST_WAITING", 4 << 20)
    arena = Arena.create(SPEC, 4 * STEPS)
    segments = segment(arena, noise())
    held: list[tuple[bool, int]] = []

    async def work(server: Server, connection: EdgeConnection) -> None:
        connection.congested = lambda now: held.append((now, connection.waiting))
        while not held:
            connection.deliver(0, arena, segments)
        server.reads.set()
        await until(lambda: len(held) == 2)
        await until(lambda: connection.waiting == 0)
        (began, most), (goes_on, left) = held
        assert (began, goes_on) == (True, False)
        assert 4 << 20 < most < 5 << 20
        assert left < 2 << 20
        await until(lambda: any(frame.kind == Kind.MESSAGE for frame in server.frames))
        number = next(index for index, frame in enumerate(server.frames) if frame.kind == Kind.MESSAGE)
        told = messages.read(server.frames[number])
        assert isinstance(told, messages.CollectorLags)
        assert told.waiting > 4 << 20
        assert number <= 2, "it does not wait behind what waits"
        server.reads.clear()
        for _ in range(64):  # a link that stays slow
            connection.deliver(0, arena, segments)
        assert [now for now, _ in held] == [True, False, True]
        await until(lambda: connection.waiting == 0)
        assert sum(frame.kind == Kind.MESSAGE for frame in server.frames) == 1, "it is said once"

    played(work)
