"""A place for an edge collector in an attempt: on one side the pool's channel, on the other a stream, if it is taken.

What the pool sends with descriptors of shared memory goes on with its contents. What the edge collector sends is
checked; the rows of its segments are written into blocks that the pool has lent to this place.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np
import structlog

from ludus.collector import commands, messages
from ludus.collector.arena import unfreeze
from ludus.collector.carriers.columns import scatter
from ludus.collector.carriers.frames import BadFrame, FrameAssembler, pack
from ludus.collector.carriers.local import map_memory
from ludus.collector.carriers.neighbor import ChannelOffer
from ludus.collector.channel import Channel, ChannelClosedError, Frame
from ludus.collector.messages import Kind, Message, pack_numbered, unpack_numbered
from ludus.collector.segments import Segments
from ludus.collector.settings import CollectorSettings
from ludus.http2.calls import BROKEN, EOF, StreamCall
from worker.collectors.edge import checks
from worker.collectors.processes import NUMBERS

log = structlog.get_logger()


class BehaviorMemory:
    """A behavior's arena and weights, mapped once for all places."""

    def __init__(self, message: commands.Admit, descriptors: Sequence[int]) -> None:
        self.arena, self._weights = map_memory(message, descriptors)
        self._newest = (-1, b"")
        """The version that was read last, and its bytes."""

    @classmethod
    def of(
        cls, mapped: dict[int, "BehaviorMemory"], message: commands.Admit, descriptors: Sequence[int]
    ) -> "BehaviorMemory":
        """Return the memory of an admitted behavior: one that is `mapped`, by runner, for as long as the attempt lasts.

        Descriptors of mapped memory are closed; those of the policies of an evaluation are left to the caller.
        """
        if message.runner not in mapped:
            mapped[message.runner] = cls(message, descriptors)
        else:
            for fd in descriptors if not message.policy.evaluated else descriptors[:1]:
                os.close(fd)
        return mapped[message.runner]

    def weights(self, message: commands.Weights) -> bytes:
        """Return the bytes of a version that lies in a buffer. Places that send the same one share them."""
        assert self._weights is not None, "weights are published for behaviors that learn"
        if self._newest[0] != message.version:
            self._newest = message.version, self._weights.read(message.index, message.version).tobytes()
        return self._newest[1]


TIMES_SECONDS: Final = 0.5
"""Half the period of an honest collector's `TimesMeasured`."""
SILENCE_SECONDS: Final = 60.0
"""An edge collector that has sent nothing for so long is frozen, or cut off."""


@dataclass(slots=True)
class _Runner:
    """A behavior, as this place acts for it."""

    memory: BehaviorMemory
    policy: commands.PolicySpec
    recorded: bool = True
    """Whether the edge collector records what it answers."""
    opponents: set[int] = field(default_factory=set)
    """Keys of the frozen policies that the edge collector was sent."""
    blocks: list[int] = field(default_factory=list)
    """Lent by the pool, free to be written."""
    lent: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: bool = False
    """Whether the pool was asked for blocks."""
    quota: checks.QuotaCheck = field(default_factory=checks.QuotaCheck)
    sent_version: int = -1
    """Newest version that the edge collector was sent."""
    unread: bool = False
    """Whether it has not acknowledged that version."""
    newer: tuple[commands.Weights, bytes] | None = None
    """The newest version, while it reads an older one."""


class Place:
    """One place. All methods are called in the event loop of the reader."""

    def __init__(
        self,
        message: commands.OpenPlace,
        channel: Channel,
        memory: dict[int, BehaviorMemory],
        port: Callable[[], int],
        closed: Callable[["Place"], None],
    ) -> None:
        self.index = message.index
        self.former = message.former
        """Identity of the collector that had it in the former attempt, if one had."""
        self.channel = channel
        self.taken_by: str | None = None
        """Identity of the edge collector that has the place."""
        self._memory = memory
        self._port = port
        self._on_close = closed
        self._loop = asyncio.get_running_loop()
        self._runners: dict[int, _Runner] = {}
        self._range = range(0)
        """Numbers that simulators may have here."""
        self._numbers: set[int] = set()
        """Of the simulators that have connected here."""
        self._outgoing: deque[bytes] = deque()
        self._has_outgoing = asyncio.Event()
        self._lags = False
        """Whether the edge collector has said that it lags: a link that stays slow is one event, not thousands."""
        self._next_times = 0.0
        """Measured times that come before are dropped."""
        self._serving: asyncio.Task[None] | None = None
        self._closed = False
        self._offer: ChannelOffer | None = None
        """The channel, for a collector of this host."""
        self._given_away = False
        """Whether the edge collector uses the channel itself."""
        self._silence: asyncio.Timeout | None = None
        """That of the next message on the stream."""
        self._loop.add_reader(channel.fileno(), self._receive)

    async def serve(self, context: StreamCall, taken: messages.PlaceTaken, frames: FrameAssembler) -> None:
        """Serve an edge collector until its stream ends. Raises Violation."""
        self.taken_by = taken.identity
        self._serving = asyncio.current_task()
        offer = self._offer = ChannelOffer(self.channel, self._give_away)
        self._tell_pool(taken)
        writing = asyncio.ensure_future(self._write(context))
        try:
            await self._read(context, frames)
        except checks.Violation as error:
            self._tell_pool(messages.Failed(f"{error.code}: {error}"))
            raise
        except BROKEN:
            pass
        except asyncio.CancelledError:
            if not self._closed:
                raise
            # `end` has cancelled: returning ends the stream, of which gRPC would tell the edge collector nothing else
        finally:
            offer.close()
            writing.cancel()
            self.close()

    async def _read(self, context: StreamCall, frames: FrameAssembler) -> None:
        """Handle what comes to the end of the stream. Raises Violation."""
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS) as self._silence:
                    message = await context.read()
                if message is EOF:
                    return
                frame = frames.take(message)
            except TimeoutError:
                raise checks.Violation("collector_silent", f"nothing came for {SILENCE_SECONDS:.0f} s") from None
            except BadFrame as error:
                raise checks.Violation("malformed_message", str(error)) from None
            if frame is not None:
                await self._handle(frame)

    def _give_away(self) -> None:
        """Leave the channel to the edge collector, which is on this host; its stream stays, and may be silent."""
        self._given_away = True
        self._loop.remove_reader(self.channel.fileno())
        self.channel.close()
        assert self._silence is not None, "the offer was read from the stream that is read here"
        self._silence.reschedule(None)

    def close(self) -> None:
        """Tell the pool that the place has lost its collector, if it had one. The pool opens it again."""
        if self._closed:
            return
        self._closed = True
        if not self._given_away:
            self._loop.remove_reader(self.channel.fileno())
            self._loop.remove_writer(self.channel.fileno())
            with suppress(ChannelClosedError):
                self.channel.flush()
            self.channel.close()
        for runner in self._runners.values():
            runner.lent.set()
        self._on_close(self)

    def end(self) -> None:
        """End the stream, if there is one: the pool has closed the place."""
        if self._serving is not None:
            self._serving.cancel()
        self.close()

    def _receive(self) -> None:
        try:
            frames = self.channel.receive()
        except ChannelClosedError:
            self.end()
            return
        for frame in frames:
            self._forward(frame)

    def _forward(self, frame: Frame) -> None:
        """Take a frame of the pool, and send the edge collector what is its own."""
        if frame.kind == Kind.BLOCKS:
            number, payload = unpack_numbered(frame.payload)
            runner = self._runners[number]
            runner.blocks.extend(np.frombuffer(payload, np.int32).tolist())
            runner.waiting = False
            runner.lent.set()
            return
        if frame.kind == Kind.RESTORED:
            self._put(Kind.RESTORED, frame.payload)
            return
        match message := messages.read(frame):
            case commands.Settings():
                begin = message.first_number // NUMBERS * NUMBERS
                self._range = range(begin, begin + NUMBERS)
                assert self._offer is not None, "the settings come for the collector that has the place"
                passed = replace(message, settings=_for_strangers(message.settings))
                self._put(Kind.MESSAGE, passed.pack(), [self._offer.name])
                return
            case commands.Admit():
                memory = BehaviorMemory.of(self._memory, message, frame.descriptors)
                self._runners[message.runner] = _Runner(memory, message.policy)
                evaluated = frame.descriptors[1:] if message.policy.evaluated else ()
                portable = replace(message, policy=message.policy.portable)
                self._put(Kind.MESSAGE, portable.pack(), [unfreeze(fd).tobytes() for fd in evaluated])
                return
            case commands.Weights():  # sent as soon as the edge collector has read the version before
                runner = self._runners[message.runner]
                runner.newer = message, runner.memory.weights(message)
                self._tell_pool(messages.WeightsRead(message.runner, message.index))
                self._send_weights(runner)
                return
            case commands.FrozenPolicy():
                (fd,) = frame.descriptors
                self._runners[message.runner].opponents.add(message.key)
                self._put(Kind.MESSAGE, frame.payload, [unfreeze(fd).tobytes()])
                return
            case commands.Unrecorded():
                self._runners[message.runner].recorded = False
            case commands.GrantSteps():
                self._runners[message.runner].quota.grant(
                    message.round, message.steps, message.size, is_cut=message.ahead is None
                )
            case _:
                pass
        self._put(Kind.MESSAGE, frame.payload)

    def _send_weights(self, runner: _Runner) -> None:
        if runner.newer is None or runner.unread:
            return
        message, data = runner.newer
        runner.newer, runner.unread, runner.sent_version = None, True, message.version
        self._put(Kind.MESSAGE, message.pack(), [data])

    async def _handle(self, frame: Frame) -> None:
        """Check a frame, and tell the pool. Raises Violation."""
        match frame.kind:
            case Kind.SEGMENTS:
                await self._take_segments(frame)
            case Kind.EPISODES:
                number, payload = unpack_numbered(frame.payload)
                runner = self._runner(number)
                checks.check_episodes(payload, self._numbers, max(runner.sent_version, 0))
                self._send_pool(Kind.EPISODES, frame.payload)
            case Kind.SNAPSHOTS:
                checks.check_snapshot(frame.payload)
                self._send_pool(Kind.SNAPSHOTS, frame.payload)
            case Kind.RECORDING:
                self._send_pool(Kind.RECORDING, frame.payload)
            case Kind.MESSAGE:
                self._take_message(checks.read_message(frame), frame)
            case _:
                raise checks.Violation("unexpected_message", f"a frame of kind {frame.kind} is none of a collector")

    def _take_message(self, message: Message, frame: Frame) -> None:
        match message:
            case messages.Listening():
                self._tell_pool(messages.Listening(self._port()))
                return
            case messages.WeightsRead():
                runner = self._runner(message.runner)
                runner.unread = False
                self._send_weights(runner)
                return
            case messages.WantBlocks():
                return  # of its own arena, which is as large as it is
            case messages.SimulatorConnected():
                if message.number not in self._range:
                    raise checks.Violation(
                        "malformed_message", f"{message.number} is the number of another's simulator"
                    )
                self._numbers.add(message.number)
                self._tell_pool(replace(message, collector=self.index))
                return
            case messages.CollectorLags():
                if not self._lags:
                    self._lags = True
                    self._tell_pool(replace(message, collector=self.index))
                return
            case messages.TimesMeasured():
                if not {simulator.number for simulator in message.simulators} <= self._numbers:
                    raise checks.Violation("malformed_message", "times are of a simulator that did not connect here")
                now = self._loop.time()
                if now >= self._next_times:  # the trainer keeps them for a while: nobody fills its memory with them
                    self._next_times = now + TIMES_SECONDS
                    self._tell_pool(replace(message, collector=self.index))
                return
            case messages.QuotaProgress():
                self._runner(message.runner)
            case messages.StepsPlayed():
                if self._playing(message.behavior).recorded:
                    self._in_self_play(message.behavior)
            case messages.MatchesEnded():
                self._in_self_play(message.behavior)
                for match in message.matches:
                    opponents_known = [key in self._in_self_play(name).opponents for name, _, key in match.opponents]
                    checks.check_match(match, self._numbers, opponents_known=all(opponents_known))
            case messages.EvaluationEnded():
                if not self._playing(message.behavior).policy.evaluated:
                    raise checks.Violation("unexpected_message", f"{message.behavior!r} is not evaluated")
            case messages.Failed():
                log.warning("edge_collector_failed", index=self.index, reason=message.reason)
            case _:
                pass
        self._send_pool(Kind.MESSAGE, frame.payload)

    async def _take_segments(self, frame: Frame) -> None:
        """Write the rows of segments into blocks of the pool, and deliver them."""
        number, payload = unpack_numbered(frame.payload)
        runner = self._runner(number)
        arena = runner.memory.arena
        segments = checks.records_of(payload)
        checks.check_records(segments, arena, runner.policy.time_horizon, self._numbers)
        runner.quota.deliver(segments)
        needed = int(segments.records["blocks"].sum())
        while len(runner.blocks) < needed:  # the learner holds them all: nothing more is read from this stream
            if self._closed:
                return
            if not runner.waiting:
                runner.waiting = True
                self._tell_pool(messages.WantBlocks(number))
            runner.lent.clear()
            await runner.lent.wait()
        written = Segments(segments.records, np.array(runner.blocks[-needed:], np.int32))
        try:
            scatter(arena, written, frame.contents)
        except ValueError as error:
            raise checks.Violation("bad_experience", str(error)) from None
        checks.check_columns(arena, written, runner.sent_version)
        del runner.blocks[-needed:]
        self._send_pool(Kind.SEGMENTS, pack_numbered(number, written.pack()))

    def _runner(self, number: int) -> _Runner:
        runner = self._runners.get(number)
        if runner is None:
            raise checks.Violation("unexpected_message", f"runner {number} was not admitted")
        return runner

    def _playing(self, behavior: str) -> _Runner:
        for runner in self._runners.values():
            if runner.memory.arena.layout.spec.behavior == behavior:
                return runner
        raise checks.Violation("unexpected_message", f"behavior {behavior!r} was not admitted")

    def _in_self_play(self, behavior: str) -> _Runner:
        runner = self._playing(behavior)
        if not runner.policy.self_play:
            raise checks.Violation("unexpected_message", f"{behavior!r} is not in self-play")
        return runner

    def _tell_pool(self, message: Message) -> None:
        self._send_pool(Kind.MESSAGE, message.pack())

    def _send_pool(self, kind: Kind, payload: bytes) -> None:
        if self._closed or self._given_away:
            return
        try:
            self.channel.send(kind, payload)
            if self.channel.pending:
                self._loop.add_writer(self.channel.fileno(), self._flush)
        except ChannelClosedError:
            self.end()

    def _flush(self) -> None:
        try:
            self.channel.flush()
        except ChannelClosedError:
            self.end()
            return
        if not self.channel.pending:
            self._loop.remove_writer(self.channel.fileno())

    def _put(self, kind: Kind, payload: bytes, contents: Sequence[bytes] = ()) -> None:
        self._outgoing.extend(pack(kind, payload, contents))
        self._has_outgoing.set()

    async def _write(self, context: StreamCall) -> None:
        with suppress(*BROKEN):  # reading finds out
            while True:
                while self._outgoing:
                    await context.write(self._outgoing.popleft())
                self._has_outgoing.clear()
                await self._has_outgoing.wait()


def _for_strangers(text: str) -> str:
    """Return collector settings without what is the worker's own: addresses, keys, and paths."""
    settings = CollectorSettings.from_json(text)
    default = asdict(CollectorSettings(settings.run_id, settings.attempt, settings.seed))
    private = ("bind_host", "advertise_host", "port_range", "ticket_key", "tls_certificate", "tls_key", "tls_client_ca")
    hidden = {name: default[name] for name in (*private, "websocket_range", "unity_port", "log_path")}
    hidden["recordings"] = None if settings.recordings is None else ""
    return json.dumps({**json.loads(text), **hidden})
