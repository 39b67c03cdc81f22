"""The connection of an edge collector to its attempt: a stream of frames, with memory of its own on this side."""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import grpc
import grpc.aio
import numpy as np

from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena, ArenaLayout
from ludus.collector.carriers.columns import gather, in_frames
from ludus.collector.carriers.connection import AdmittedMemory, LearnerConnection
from ludus.collector.carriers.frames import BadFrame, FrameAssembler, pack
from ludus.collector.channel import Frame
from ludus.collector.commands import Admit, Weights
from ludus.collector.messages import CollectorLags, Kind, pack_numbered
from ludus.collector.segments import Segments
from ludus.http2.calls import BROKEN, EOF

ARENA_BYTES = 4 << 30
"""Address space of a behavior's arena, at most; only the part that open segments need becomes memory."""
FEWEST_BLOCKS = 1_000
MOST_WAITING = 64 << 20
"""With more bytes than this waiting for the stream, no agent is answered: the network is slower than the games."""
BEHIND = 1 << 20
"""With more bytes than this waiting, the network is slower than the games."""
PROBE_BYTES = 2048
"""Of the middle of a column, to see whether compression pays."""
WORST_RATIO, WORST_RATIO_BEHIND = 0.5, 0.9
"""A column is compressed if no more than this share of its bytes is left. While the network is behind, all that can be
saved is; else wide columns (a quarter of a frame or more: pictures) go as they are, or zlib would be what limits."""
ZLIB_LEVEL = 1
"""The fastest: random numbers lose nothing at any level, and what repeats loses most at this one."""


class StreamEnded(Exception):
    """The attempt ended the stream before it had sent what was waited for."""


@dataclass(slots=True)
class _Outgoing:
    """A frame that waits for the stream."""

    kind: Kind
    payload: bytes
    contents: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """Bytes, before compression."""
        return len(self.payload) + sum(len(each) for each in self.contents)


class EdgeConnection(LearnerConnection):
    """One session of an edge collector, on a stream of `CollectorService.Collect`. An async context manager."""

    def __init__(self, call: Any) -> None:
        self.waiting = 0
        """Bytes that wait for the stream."""
        self.congested: Callable[[bool], None] = lambda _: None
        """Called with True when too much waits for the stream, and with False when that is over."""
        self.lagging: Callable[[], None] = lambda: None
        """Called the first time that too much waits."""
        self.error: grpc.aio.AioRpcError | BadFrame | None = None
        """Why the stream ended, unless the attempt ended it in good order."""
        self._call = call
        self._outgoing: deque[_Outgoing] = deque()
        self._has_outgoing = asyncio.Event()
        self._early: asyncio.Queue[Frame | None] = asyncio.Queue()
        """Frames that came before `begin`; None is the end."""
        self._take: Callable[[Sequence[Frame]], None] | None = None
        self._lost: Callable[[], None] = lambda: None
        self._is_congested = False
        self._has_lagged = False
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    # The stream -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.cancel()

    async def first_frame(self) -> Frame:
        """Return the next frame that came before `begin`. Raises StreamEnded."""
        frame = await self._early.get()
        if frame is None:
            raise StreamEnded
        return frame

    def begin(self, take: Callable[[Sequence[Frame]], None], lost: Callable[[], None]) -> None:
        """Hand on frames from now on."""
        self._take, self._lost = take, lost
        while not self._early.empty():
            frame = self._early.get_nowait()
            if frame is None:
                lost()
            else:
                take([frame])

    async def finish(self, seconds: float) -> None:
        """Send what waits, end this side of the stream, and wait until the attempt ends its own."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.waiting and not self._ended:
                    await asyncio.sleep(0.005)
                with suppress(*BROKEN):
                    await self._call.done_writing()
                await asyncio.wait([self._tasks[0]])

    async def _read(self) -> None:
        frames = FrameAssembler()
        try:
            while (message := await self._call.read()) is not EOF:
                frame = frames.take(message)
                if frame is None:
                    continue
                if self._take is None:
                    self._early.put_nowait(frame)
                else:
                    self._take([frame])
        except grpc.aio.AioRpcError as error:
            self.error = error
        except BadFrame as error:
            self.error = error
        except (*BROKEN, asyncio.CancelledError):
            pass
        finally:
            self._ended = True
            self._early.put_nowait(None)
            self._lost()

    async def _write(self) -> None:
        with suppress(*BROKEN):  # reading finds out
            while True:
                while self._outgoing:
                    frame = self._outgoing.popleft()
                    contents, compressed = frame.contents, list[int]()
                    if contents:
                        # In a thread: the event loop answers agents, and zlib works without the interpreter's lock.
                        behind = self.waiting > BEHIND
                        contents, compressed = await asyncio.to_thread(_compress, contents, behind=behind)
                    try:
                        for part in pack(frame.kind, frame.payload, contents, compressed):
                            await self._call.write(part)
                    except BadFrame as error:
                        self.error = error
                        self._call.cancel()
                        return
                    self.waiting -= frame.size
                    if self._is_congested and self.waiting < MOST_WAITING // 2:
                        self._is_congested = False
                        self.congested(False)
                self._has_outgoing.clear()
                await self._has_outgoing.wait()

    def _put(self, frame: _Outgoing) -> None:
        if self._ended:
            return
        self._outgoing.append(frame)
        self.waiting += frame.size
        if self.waiting > MOST_WAITING and not self._is_congested:
            self._is_congested = True
            if not self._has_lagged:
                self._has_lagged = True
                lags = _Outgoing(Kind.MESSAGE, CollectorLags(0, self.waiting).pack())
                self._outgoing.appendleft(lags)  # it overtakes what waits
                self.waiting += lags.size
                self.lagging()
            self.congested(True)
        self._has_outgoing.set()

    # LearnerConnection ------------------------------------------------------------------------------------------

    def send(self, kind: Kind, payload: bytes, *, later: bool = False) -> None:
        """Send a frame; `later` makes no difference to a stream, whose writer is a task."""
        del later
        self._put(_Outgoing(kind, payload))

    def admitted(self, message: Admit, frame: Frame) -> AdmittedMemory:
        """Make an arena in the memory of this process; all of its blocks may be written."""
        arena = Arena(-1, own_layout(message.arena))
        evaluated = [np.frombuffer(each, np.float32) for each in frame.contents]
        return AdmittedMemory(arena, range(arena.layout.blocks), evaluated)

    def weights(self, message: Weights, frame: Frame) -> FloatArray:
        """Return the weights that came with the message."""
        del message
        (data,) = frame.contents
        return np.frombuffer(data, np.float32)

    def frozen_policy(self, frame: Frame) -> FloatArray:
        """Return the weights that came with the message."""
        (data,) = frame.contents
        return np.frombuffer(data, np.float32)

    def deliver(self, runner: int, arena: Arena, segments: Segments) -> Sequence[int]:
        """Send the rows of the segments; their blocks are free."""
        for portion in in_frames(arena, segments):
            records = pack_numbered(runner, portion.records.tobytes())
            self._put(_Outgoing(Kind.SEGMENTS, records, gather(arena, portion)))
        blocks: list[int] = segments.blocks.tolist()
        return blocks


def own_layout(layout: ArenaLayout) -> ArenaLayout:
    """Return the layout of an edge collector's arena: the learner's, with fewer blocks where those are large.

    Blocks that hold no open segment are free at once here, while the learner keeps a round of them.
    """
    return replace(layout, blocks=max(min(layout.blocks, ARENA_BYTES // layout.block_bytes), FEWEST_BLOCKS))


def _compress(contents: Sequence[bytes], *, behind: bool) -> tuple[Sequence[bytes], list[int]]:
    """Compress the contents of a frame where that pays; return them, and the numbers of those that are compressed."""
    size = sum(map(len, contents))
    sent, compressed = list(contents), list[int]()
    for number, data in enumerate(contents):
        if len(data) < 2 * PROBE_BYTES or (not behind and 4 * len(data) >= size):
            continue
        worst, middle = WORST_RATIO_BEHIND if behind else WORST_RATIO, len(data) // 2
        if len(zlib.compress(data[middle : middle + PROBE_BYTES], ZLIB_LEVEL)) <= worst * PROBE_BYTES:
            sent[number] = zlib.compress(data, ZLIB_LEVEL)
            compressed.append(number)
    return sent, compressed
