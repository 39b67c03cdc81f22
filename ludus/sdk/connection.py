"""Plays a simulation in its run: joins (`ludus.sdk.join`), streams, and comes back until the run ends.

grpc.aio in one thread, because a blocking stub spends a third more processor time per message on its threads [measured:
an echo on two cores, 225 µs against 165 µs]. The game runs inside the loop; keepalive does not suffer from a long step,
since gRPC answers pings from a thread of its own.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import TICKET_METADATA
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.errors import Failure, SessionRefused
from ludus.sdk.join import SERVICE, Joiner, Place, RunEnd, Target, client_name
from ludus.sdk.session import Session
from ludus.sdk.simulation import ResumableSimulation, Simulation, Start
from ludus.sdk.steps import Actions

logger = logging.getLogger("ludus.sdk.simulator")

_EOF: Final[Any] = getattr(grpc.aio, "EOF")  # noqa: B009  the type stubs do not know it

CLIENT: Final = "ludus-python"
WELCOME_SECONDS: Final = 60.0
"""A stream that was not welcomed in this time is given up."""


@dataclass(frozen=True)
class Ending(RunEnd):
    """How a simulator's part in a run ended."""

    decisions: int = 0
    """Decisions that agents asked for, over all sessions."""
    episodes: int = 0
    """Episodes that ended, over all sessions."""
    sessions: int = 0
    """How many times the simulator was welcomed; 0 if the run had ended before."""


class Dialer:
    """Plays one simulation in one run until the run ends."""

    def __init__(self, simulation: Simulation, target: Target) -> None:
        self.joiner = Joiner(target, logger.log, client_name(CLIENT))
        self._simulation = simulation
        self._behaviors: list[BehaviorSpec] = list(simulation.behaviors)
        self._first = True
        self._decisions = self._episodes = self._sessions = 0

    async def play(self) -> Ending:
        """Connect as often as it takes. Raises CannotConnect or SessionRefused when trying again is pointless."""
        self.joiner.warn()
        self.joiner.expect_contact()
        async with self.joiner:
            while True:
                outcome: Place | RunEnd | Failure = await self.joiner.find()
                if isinstance(outcome, Place):
                    async with outcome as place:
                        outcome = await self._stream(place)
                if isinstance(outcome, RunEnd):
                    return self._ending(outcome)
                await self.joiner.back_off(outcome)

    async def _stream(self, place: Place) -> RunEnd | Failure:
        """Play one session to its end."""
        connect: Any = place.channel.stream_stream(
            f"{SERVICE}Connect",
            request_serializer=pb.ConnectRequest.SerializeToString,
            response_deserializer=pb.ConnectResponse.FromString,
        )
        session = Session(self._behaviors)
        ticket = place.assignment.ticket
        call = connect(metadata=((TICKET_METADATA, ticket),))
        stream = _Stream(call)
        try:
            resumes = isinstance(self._simulation, ResumableSimulation)
            incarnation = self.joiner.target.incarnation
            await stream.write(session.hello(ticket, incarnation, client_name(CLIENT), resumes=resumes))
            first = await asyncio.wait_for(stream.read(), WELCOME_SECONDS)
            close = first.close if first.HasField("close") else await self._play(session, stream, first, place)
        except grpc.aio.AioRpcError as error:
            return place.explain(error)
        except TimeoutError:
            return Failure(
                "timeout", f"the collector at {place.address} did not welcome the simulator", permanent=False
            )
        except _StreamEnded:
            return Failure("stream_ended", f"{place.address} ended the stream without saying why", permanent=False)
        finally:
            self._behaviors = session.behaviors
            self._decisions += session.decisions
            self._episodes += session.episodes
            call.cancel()
        return self.joiner.judge(close)

    async def _play(self, session: Session, stream: "_Stream", first: pb.ConnectResponse, place: Place) -> pb.Close:
        """Exchange steps and actions until the server closes."""
        if not first.HasField("welcome"):
            raise SessionRefused("unexpected_message", f"the server answered Hello with {first.WhichOneof('message')}")
        welcome = first.welcome
        session.welcome(welcome)
        self._sessions += 1
        place.welcomed()
        self.joiner.notice(f"connected to run {welcome.run_id} as simulator {welcome.simulator_number}", again=True)

        def start() -> Start:
            first_time, self._first = self._first, False
            return Start(welcome.seed, dict(session.parameters), welcome.simulator_number, welcome.run_id, first_time)

        turn = session.turn()
        game = self._simulation
        resumed = False
        if isinstance(game, ResumableSimulation) and welcome.HasField("position"):
            self.joiner.notice("going on where the run's checkpoint was taken", again=True)
            game.resume(turn, start(), welcome.position)
            resumed = True
        else:
            game.reset(turn, start())
        while True:
            requests, resumed = session.requests(turn, resumed=resumed), False
            for request in requests:
                _check_size(request, welcome.max_message_bytes)
                await stream.write(request)
            message = await (stream.poll() if session.idle else stream.read())
            turn = session.turn()
            kind = None if message is None else message.WhichOneof("message")
            if message is None:
                self._simulation.step(turn, Actions())
            elif kind == "actions":
                self._simulation.step(turn, session.actions(message.actions))
            elif kind == "reset":
                session.reset(message.reset)
                turn = session.turn()
                self._simulation.reset(turn, start())
            elif kind == "save" and isinstance(game, ResumableSimulation):
                await stream.write(session.saved(message.save, game.position()))
            elif kind == "wait":
                self.joiner.notice(f"waiting: {message.wait.reason}")
            elif kind == "close":
                return message.close

    def _ending(self, end: RunEnd) -> Ending:
        return Ending(end.code, end.reason, end.run_id, self._decisions, self._episodes, self._sessions)


class _StreamEnded(Exception):
    """The server ended the stream without Close."""


class _Stream:
    """A call whose reads can be polled, and whose last words are heard even if they cross a write.

    A write to a stream that the server has just ended fails the whole call in grpc.aio, with the server's Close unread.
    So a read is always under way while something is written, and a failing write leaves it to the read to tell why.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Task[Any] | None = None
        self._ended = False
        """Whether a write has failed."""

    async def write(self, request: pb.ConnectRequest) -> None:
        """Send; that the server has ended the stream is still to be read."""
        self._read_ahead()
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._ended = True

    async def read(self) -> pb.ConnectResponse:
        """Return the next message. Raises _StreamEnded or AioRpcError."""
        reading, self._reading = self._read_ahead(), None
        try:
            message = await reading
        except grpc.aio.AioRpcError as error:
            if self._ended and error.code() is grpc.StatusCode.INTERNAL:  # grpc.aio's own word for a failed write
                raise _StreamEnded from None
            raise
        if message is _EOF:
            raise _StreamEnded
        response: pb.ConnectResponse = message
        return response

    async def poll(self) -> pb.ConnectResponse | None:
        """Return the next message if it is there already."""
        done, _ = await asyncio.wait({self._read_ahead()}, timeout=0)
        return await self.read() if done else None

    def _read_ahead(self) -> asyncio.Task[Any]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        return self._reading


def _check_size(request: pb.ConnectRequest, limit: int) -> None:
    """Refuse to send what the server would not take: the call would fail, and the next one like it."""
    size = request.ByteSize()
    if 0 < limit < size:
        raise SessionRefused(
            CloseCode.MESSAGE_TOO_LARGE,
            f"a message has {size} bytes, the server takes {limit}: simulate fewer agents per process",
        )
