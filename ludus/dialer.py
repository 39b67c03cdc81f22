"""Keeps a simulation connected to its run: joins, streams, comes back, and says in a sentence why it cannot.

grpc.aio in one thread, because a blocking stub spends a third more processor time per message on its threads [measured:
an echo on two cores, 225 µs against 165 µs]. The game runs inside the loop; keepalive does not suffer from a long step,
since gRPC answers pings from a thread of its own.
"""

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import grpc
import grpc.aio

from ludus.session import Session
from ludus.simulation import Simulation, Start
from ludus.spec import BehaviorSpec
from ludus.trouble import CannotConnect, Failure, SessionRefused, explain
from ludus.turn import Actions
from ludus.wire import simulation_pb2 as pb
from ludus.wire.codec import PROTOCOL_VERSION
from ludus.wire.codes import CloseCode
from ludus.wire.options import DIRECT_SECONDS, TICKET_METADATA, client_options

logger = logging.getLogger("ludus.simulator")

_EOF: Final[Any] = getattr(grpc.aio, "EOF")  # noqa: B009  the type stubs do not know it

SERVICE: Final = "/ludus.v1.SimulationService/"
JOIN_SECONDS: Final = 10.0
WELCOME_SECONDS: Final = 60.0
"""A stream that was not welcomed in this time is given up."""
FIRST_BACK_OFF_SECONDS: Final = 0.25
LONGEST_BACK_OFF_SECONDS: Final = 15.0
LONGEST_WAIT_SECONDS: Final = 30.0
"""Upper limit on what a `Wait` can ask for, so that a simulator does not sleep through its run."""

DEAD_COLLECTORS: Final = 3
"""After so many addresses out of reach a simulator asks for relay even if it was connected directly before."""

_END_OF_RUN: Final = {CloseCode.RUN_FINISHED, CloseCode.RUN_CANCELLED, CloseCode.RUN_FAILED}
_END_OF_STATE: Final = {
    "SUCCEEDED": CloseCode.RUN_FINISHED,
    "CANCELLED": CloseCode.RUN_CANCELLED,
    "FAILED": CloseCode.RUN_FAILED,
}


@dataclass(frozen=True)
class Ending:
    """How a simulator's part in a run ended."""

    code: CloseCode
    """RUN_FINISHED, RUN_CANCELLED or RUN_FAILED."""
    reason: str
    """A sentence for people."""
    run_id: str
    """The run's id where it is known, else what was asked for."""
    decisions: int = 0
    """Decisions that agents asked for, over all sessions."""
    episodes: int = 0
    """Episodes that ended, over all sessions."""
    sessions: int = 0
    """How many times the simulator was welcomed; 0 if the run had ended before."""

    @property
    def finished(self) -> bool:
        """Whether the run reached its end, rather than being cancelled or failing."""
        return self.code is CloseCode.RUN_FINISHED


@dataclass(frozen=True)
class Target:
    """What to connect to, and how."""

    server: str
    """host:port of the gateway."""
    run: str
    """Run id, or the name of a run."""
    token: str | None = None
    label: str = ""
    ca_file: Path | None = None
    """PEM file of the certificate authority. Given: the gateway speaks TLS."""
    patience_seconds: float | None = 300.0
    """How long to go on trying without reaching the gateway. None: for ever."""
    incarnation: str = field(default_factory=lambda: uuid4().hex)


class Dialer:
    """Plays one simulation in one run until the run ends."""

    def __init__(self, simulation: Simulation, target: Target) -> None:
        self._simulation = simulation
        self._target = target
        self._behaviors: list[BehaviorSpec] = list(simulation.behaviors)
        self._relay = False
        self._directly = False
        """Whether a direct session was ever welcomed: then an address out of reach is a dead collector, no firewall."""
        self._unreached = 0
        """Direct addresses in a row that were out of reach."""
        self._failures = 0
        self._last_contact = time.monotonic()
        self._last_notice = ""
        self._run_id = target.run
        self._first = True
        self._decisions = self._episodes = self._sessions = 0

    async def play(self) -> Ending:
        """Connect as often as it takes. Raises CannotConnect or SessionRefused when trying again is pointless."""
        self._last_contact = time.monotonic()
        async with self._channel(self._target.server, tls=self._target.ca_file is not None) as gateway:
            while True:
                outcome = await self._attempt(gateway)
                if isinstance(outcome, Ending):
                    return outcome
                if isinstance(outcome, Failure):
                    await self._back_off(outcome)

    async def _attempt(self, gateway: grpc.aio.Channel) -> Ending | Failure | None:
        """Join and play one session. None: join again at once."""
        try:
            assignment = await self._join(gateway)
        except grpc.aio.AioRpcError as error:
            failure = self._explain(error, self._target.server, tls=self._target.ca_file is not None)
            if failure.code == "run_ended":
                return self._ending(_END_OF_STATE.get(failure.run_state, CloseCode.RUN_FINISHED), failure.sentence)
            return failure
        if assignment is None:
            return None
        self._run_id = assignment.run_id
        if assignment.relay:
            return await self._relayed(gateway, assignment)
        async with self._channel(assignment.address, tls=assignment.tls) as collector:
            try:
                await asyncio.wait_for(collector.channel_ready(), DIRECT_SECONDS)
            except TimeoutError:
                return self._out_of_reach(assignment.address)
            sessions = self._sessions
            outcome = await self._stream(collector, assignment, assignment.address, tls=assignment.tls)
            if self._sessions > sessions:
                self._directly, self._unreached = True, 0
            return outcome

    def _out_of_reach(self, address: str) -> Failure | None:
        """Ask for relay, unless this looks like a collector that has just died."""
        self._unreached += 1
        if self._directly and self._unreached < DEAD_COLLECTORS:
            return Failure("collector_unreachable", f"the collector at {address} cannot be reached", permanent=False)
        logger.info("the collector at %s cannot be reached; asking the gateway to relay", address)
        self._relay = True
        return None

    async def _relayed(self, gateway: grpc.aio.Channel, assignment: pb.Assignment) -> Ending | Failure | None:
        """Play a session through the gateway; forget the relay if it leads nowhere, since collectors may have moved."""
        sessions = self._sessions
        outcome = await self._stream(gateway, assignment, self._target.server, tls=self._target.ca_file is not None)
        if self._sessions == sessions:
            self._relay = False
        return outcome

    async def _join(self, gateway: grpc.aio.Channel) -> pb.Assignment | None:
        """Ask for a place; None after having waited as the gateway asked."""
        request = pb.JoinRequest(
            run=self._target.run,
            incarnation=self._target.incarnation,
            protocol_version=PROTOCOL_VERSION,
            relay=self._relay,
            label=self._target.label,
            client=client_name(),
        )
        join = gateway.unary_unary(
            f"{SERVICE}Join",
            request_serializer=pb.JoinRequest.SerializeToString,
            response_deserializer=pb.JoinResponse.FromString,
        )
        metadata = (("authorization", f"Bearer {self._target.token}"),) if self._target.token else ()
        response = await join(request, timeout=JOIN_SECONDS, metadata=metadata)
        self._last_contact = time.monotonic()
        if response.HasField("assignment"):
            assignment: pb.Assignment = response.assignment
            return assignment
        self._notice(f"waiting: {response.wait.reason or 'the run is not ready yet'}")
        self._failures = 0
        await asyncio.sleep(min(max(response.wait.retry_after_seconds, 0.1), LONGEST_WAIT_SECONDS))
        return None

    async def _stream(
        self, channel: grpc.aio.Channel, assignment: pb.Assignment, address: str, *, tls: bool
    ) -> Ending | Failure | None:
        """Play one session to its end."""
        connect: Any = channel.stream_stream(
            f"{SERVICE}Connect",
            request_serializer=pb.ConnectRequest.SerializeToString,
            response_deserializer=pb.ConnectResponse.FromString,
        )
        session = Session(self._behaviors)
        call = connect(metadata=((TICKET_METADATA, assignment.ticket),))
        stream = _Stream(call)
        try:
            await stream.write(session.hello(assignment.ticket, self._target.incarnation, client_name()))
            first = await asyncio.wait_for(stream.read(), WELCOME_SECONDS)
            close = first.close if first.HasField("close") else await self._play(session, stream, first)
        except grpc.aio.AioRpcError as error:
            return self._explain(error, address, tls=tls)
        except TimeoutError:
            return Failure("timeout", f"the collector at {address} did not welcome the simulator", permanent=False)
        except _StreamEnded:
            return Failure("stream_ended", f"{address} ended the stream without saying why", permanent=False)
        finally:
            self._behaviors = session.behaviors
            self._decisions += session.decisions
            self._episodes += session.episodes
            call.cancel()
        return self._closed(close)

    async def _play(self, session: Session, stream: "_Stream", first: pb.ConnectResponse) -> pb.Close:
        """Exchange steps and actions until the server closes."""
        if not first.HasField("welcome"):
            raise SessionRefused("unexpected_message", f"the server answered Hello with {first.WhichOneof('message')}")
        welcome = first.welcome
        self._sessions += 1
        self._failures = 0
        self._last_contact = time.monotonic()
        self._notice(f"connected to run {welcome.run_id} as simulator {welcome.simulator_number}", again=True)

        def start(parameters: Any) -> Start:
            first_time, self._first = self._first, False
            return Start(welcome.seed, dict(parameters), welcome.simulator_number, welcome.run_id, first_time)

        turn = session.turn()
        self._simulation.reset(turn, start(welcome.environment_parameters))
        while True:
            for request in session.requests(turn):
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
                self._simulation.reset(turn, start(message.reset.environment_parameters))
            elif kind == "wait":
                self._notice(f"waiting: {message.wait.reason}")
            elif kind == "close":
                return message.close

    def _closed(self, close: pb.Close) -> Ending | Failure | None:
        """Decide what a Close means for us."""
        if close.rejoin:
            return Failure(close.code, f"the server closed the session: {close.reason}", permanent=False)
        if close.code in _END_OF_RUN:
            return self._ending(CloseCode(close.code), close.reason)
        raise SessionRefused(close.code, f"{close.reason} ({close.code})")

    def _ending(self, code: CloseCode, reason: str) -> Ending:
        return Ending(code, reason, self._run_id, self._decisions, self._episodes, self._sessions)

    async def _back_off(self, failure: Failure) -> None:
        """Sleep, longer with each failure in a row; give up when it is pointless or has lasted too long."""
        if failure.permanent:
            raise CannotConnect(failure.code, failure.sentence)
        patience, silent = self._target.patience_seconds, time.monotonic() - self._last_contact
        if patience is not None and silent > patience:
            raise CannotConnect(failure.code, f"{failure.sentence}; gave up after {silent:.0f} s")
        longest = min(FIRST_BACK_OFF_SECONDS * 2**self._failures, LONGEST_BACK_OFF_SECONDS)
        self._failures = min(self._failures + 1, 16)
        # Jitter keeps a thousand simulators from coming back in the same instant.
        seconds = longest * random.uniform(0.5, 1.0)  # noqa: S311  nothing secret
        self._notice(f"{failure.sentence}; trying again", level=logging.WARNING)
        await asyncio.sleep(seconds)

    def _notice(self, sentence: str, *, level: int = logging.INFO, again: bool = False) -> None:
        """Log a sentence, unless it is the one that was logged last."""
        if again or sentence != self._last_notice:
            logger.log(level, sentence)
        self._last_notice = sentence

    def _explain(self, error: grpc.aio.AioRpcError, address: str, *, tls: bool) -> Failure:
        return explain(error, address, tls=tls, token=self._target.token is not None)

    def _channel(self, address: str, *, tls: bool) -> grpc.aio.Channel:
        host = address.rpartition(":")[0].strip("[]")
        if not tls:
            return grpc.aio.insecure_channel(address, client_options(host))
        ca = self._target.ca_file.read_bytes() if self._target.ca_file else None
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), client_options(host))


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

    async def write(self, request: pb.ConnectRequest) -> None:
        """Send; that the server has ended the stream is still to be read."""
        self._read_ahead()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def read(self) -> pb.ConnectResponse:
        """Return the next message. Raises _StreamEnded or AioRpcError."""
        reading, self._reading = self._read_ahead(), None
        message = await reading
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


def client_name() -> str:
    """Name and version of this library."""
    try:
        return f"ludus-python/{version('ludus')}"
    except PackageNotFoundError:
        return "ludus-python"
