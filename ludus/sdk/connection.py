"""Play a simulation in its run: join (`ludus.sdk.join`), exchange steps and actions, reconnect until the run ends.

One thread: the game runs inside the event loop. A collector of this machine is called by `ludus.http2`, every other one
by grpc.aio, whose keepalive does not suffer from a long step, since gRPC answers pings from a thread of its own.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from ludus import event_loop
from ludus.http2.calls import EOF
from ludus.paths import AnyPath
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.options import DEFAULT_SERVER, GATEWAY_VARIABLE, SERVICE, TICKET_METADATA
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.crashes import last_words, line_of
from ludus.sdk.errors import Failure, GameLost, GameMistake, SessionRefused
from ludus.sdk.join import CollectorEndpoint, JoinClient, RunEnd, Target, client_name
from ludus.sdk.session import Observer, Session
from ludus.sdk.simulation import ResetInfo, ResumableSimulation, Simulation
from ludus.sdk.steps import Actions

logger = logging.getLogger("ludus.sdk")

CLIENT: Final = "ludus-python"
CRASHED: Final = "game_crashed"
"""Code with which a simulator reports that its game raised an error."""
WELCOME_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ConnectionSummary(RunEnd):
    """The end of a run for a simulator, with counts of its decisions and episodes."""

    decisions: int = 0
    """Decisions that agents asked for, over all sessions."""
    episodes: int = 0
    """Episodes that ended, over all sessions."""
    sessions: int = 0
    """Number of sessions; 0 if the run had ended before the first one."""


def connect(
    simulation: Simulation,
    *,
    run: str,
    server: str | None = None,
    token: str | None = None,
    label: str = "",
    ca_file: AnyPath | None = None,
    connect_timeout_seconds: float | None = 300.0,
) -> ConnectionSummary:
    """Play in a run until it ends, and return how it ended.

    `run` is a run's id or name, `server` the gateway's host:port (by default that in LUDUS_SIMULATOR_SERVER, else
    `DEFAULT_SERVER`), `token` the gateway's bearer token (by default that in LUDUS_SIMULATOR_TOKEN, else in
    LUDUS_TOKEN; empty: none), `label` the name in the list of simulators;
    `ca_file` (PEM) turns TLS on, and LUDUS_CLIENT_CERTIFICATE and LUDUS_CLIENT_KEY name the files for a gateway that
    wants a certificate. Waits while the run is queued or paused. Reconnects with exponential back-off until the
    gateway has been unreachable for `connect_timeout_seconds` (None: no limit). Logs to the logger `ludus.sdk`; a
    program that has not configured logging prints these messages to standard error.

    Raises CannotConnect when retrying is pointless (wrong token, no such run, ...) or after
    `connect_timeout_seconds`, and SessionRefused when the server rejected a message of the simulation. Must not be
    called inside a running event loop.
    """
    server = server or os.environ.get(GATEWAY_VARIABLE) or DEFAULT_SERVER
    return connect_to(Target(server, run, token, label, ca_file, connect_timeout_seconds), simulation)


def connect_to(target: Target, simulation: Simulation, observe: Observer | None = None) -> ConnectionSummary:
    """Play in a run until it ends, as `connect` does, under the session id of the target.

    `observe` gets the parts of each step before it is sent, and the specs of all behaviors, until it returns False.
    """
    try:
        with _logged_to_standard_error():
            return event_loop.run(SimulatorConnection(simulation, target, observe).play())
    finally:
        simulation.close()


@contextmanager
def _logged_to_standard_error() -> Iterator[None]:
    """Print log messages while the block runs, unless the program has configured logging."""
    if logger.hasHandlers() or logger.getEffectiveLevel() != logging.WARNING:
        yield
        return
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


class SimulatorConnection:
    """Plays one simulation in one run until the run ends."""

    def __init__(self, simulation: Simulation, target: Target, observe: Observer | None = None) -> None:
        self._observe = observe
        self.join_client = JoinClient(target, logger.log, client_name(CLIENT))
        self._simulation = simulation
        self._behaviors: list[BehaviorSpec] = []
        self._first = True
        self._decisions = self._episodes = self._sessions = 0

    async def play(self) -> ConnectionSummary:
        """Reconnect until the run ends. Raises CannotConnect or SessionRefused when retrying is pointless."""
        self.join_client.warn()
        self.join_client.restart_timeout()
        async with self.join_client:
            try:
                self._behaviors += self._simulation.behaviors
            except (GameLost, GameMistake) as error:  # a game that is started now
                await self._report(Failure(error.code, str(error), permanent=False))
                raise
            while True:
                outcome: CollectorEndpoint | RunEnd | Failure = await self.join_client.find()
                if isinstance(outcome, CollectorEndpoint):
                    async with outcome as endpoint:
                        outcome = await self._stream(endpoint)
                if isinstance(outcome, RunEnd):
                    counts = (self._decisions, self._episodes, self._sessions)
                    return ConnectionSummary(outcome.code, outcome.reason, outcome.run_id, *counts)
                await self.join_client.back_off(outcome)

    async def _stream(self, endpoint: CollectorEndpoint) -> RunEnd | Failure:
        """Play one session to its end."""
        connect: Any = endpoint.channel.stream_stream(
            f"{SERVICE}Connect",
            request_serializer=pb.ConnectRequest.SerializeToString,
            response_deserializer=pb.ConnectResponse.FromString,
        )
        session = Session(self._behaviors, self._observe)
        ticket = endpoint.assignment.ticket
        stream = _Stream(connect(metadata=((TICKET_METADATA, ticket),)))
        try:
            resumes = isinstance(self._simulation, ResumableSimulation)
            session_id = self.join_client.target.session_id
            await stream.write(session.hello(ticket, session_id, client_name(CLIENT), resumes=resumes))
            first = await stream.first()
            if first is None:
                silent = f"the collector at {endpoint.address} did not welcome the simulator"
                return Failure("timeout", silent, permanent=False)
            close = first.close if first.HasField("close") else await self._play(session, stream, first, endpoint)
        except grpc.aio.AioRpcError as error:
            return endpoint.explain(error)
        except _StreamEnded:
            return Failure("stream_ended", f"{endpoint.address} ended the stream without a reason", permanent=False)
        finally:
            self._behaviors = session.behaviors
            self._decisions += session.decisions
            self._episodes += session.episodes
            stream.cancel()
        return self.join_client.interpret_close(close)

    async def _play(
        self, session: Session, stream: "_Stream", first: pb.ConnectResponse, endpoint: CollectorEndpoint
    ) -> pb.Close:
        """Exchange steps and actions until the server closes. Reports an error of the game to the run; raises it."""
        try:
            return await self._exchange(session, stream, first, endpoint)
        except (grpc.aio.AioRpcError, _StreamEnded, SessionRefused):
            raise
        except ProtocolError as error:
            raise SessionRefused(error.code, str(error)) from error
        except (Exception, SystemExit) as error:
            if isinstance(error, GameMistake):
                problem = Failure(error.code, f"{error}{line_of(error)}", permanent=True)
            elif isinstance(error, GameLost):
                problem = Failure(error.code, str(error), permanent=False)
            else:
                problem = Failure(CRASHED, f"the game crashed: {last_words(error)}", permanent=False)
            await self._report(problem)
            raise

    async def _report(self, problem: Failure) -> None:
        await self.join_client.report(self.join_client.target.session_id, problem)

    async def _exchange(
        self, session: Session, stream: "_Stream", first: pb.ConnectResponse, endpoint: CollectorEndpoint
    ) -> pb.Close:
        if not first.HasField("welcome"):
            raise SessionRefused("unexpected_message", f"the server answered Hello with {first.WhichOneof('message')}")
        welcome = first.welcome
        session.welcome(welcome)
        self._sessions += 1
        endpoint.welcomed()
        self.join_client.report_once(
            f"connected to run {welcome.run_id} as simulator {welcome.simulator_number}", again=True
        )

        def start() -> ResetInfo:
            first_time, self._first = self._first, False
            number = welcome.simulator_number
            return ResetInfo(welcome.seed, dict(session.parameters), number, welcome.run_id, first_time)

        builder = session.new_step()
        game = self._simulation
        answers: list[ActionBatch] = []
        """Answers for which the game was not stepped yet."""
        resumed = False
        if isinstance(game, ResumableSimulation) and welcome.HasField("position"):
            self.join_client.report_once("going on where the run's checkpoint was taken", again=True)
            game.resume(builder, start(), welcome.position)
            resumed = True
        else:
            game.reset(builder, start())
        while True:
            # Only the first step after `resume` is marked as resumed.
            requests, resumed = session.requests(builder, resumed=resumed), False
            for request in requests:
                if 0 < welcome.max_message_bytes < (size := request.ByteSize()):
                    limit = f"the server takes {welcome.max_message_bytes}: simulate fewer agents per process"
                    raise SessionRefused(CloseCode.MESSAGE_TOO_LARGE, f"a message has {size} bytes, {limit}")
                await stream.write(request)
            for warning in builder.warnings:
                self.join_client.report_once(warning.sentence, level=logging.WARNING)
                await self._report(warning)
            # If no agent waits, no answer will come: look for a message without waiting, then step the game again.
            message = await (stream.poll() if session.idle else stream.read())
            builder = session.new_step()
            kind = None if message is None else message.WhichOneof("message")
            if message is None:
                self._simulation.step(builder, Actions())
            elif kind == "actions":
                answers += session.actions(message.actions).batches
                if session.idle or not game.waits_for_all:
                    game.step(builder, Actions(answers))
                    answers = []
            elif kind == "reset":
                session.reset(message.reset)
                answers = []
                builder = session.new_step()
                self._simulation.reset(builder, start())
            elif kind == "save" and isinstance(game, ResumableSimulation):
                await stream.write(session.saved(message.save, game.position()))
            elif kind == "wait":
                self.join_client.report_once(f"waiting: {message.wait.reason}")
            elif kind == "close":
                return message.close


class _StreamEnded(Exception):
    """The server ended the stream without Close."""


class _Stream:
    """A call whose reads can be polled, and whose last message is read even if a write fails meanwhile.

    A write to a stream that the server has just ended fails the whole call in grpc.aio, with the server's Close unread.
    So a read is always pending during a write, and a failed write leaves the reason to the read.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Task[pb.ConnectResponse] | None = None
        self._ended = False
        """Whether a write has failed."""

    async def write(self, request: pb.ConnectRequest) -> None:
        """Send. If the server has ended the stream, the next read raises the error."""
        self._read_ahead()
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._ended = True

    async def first(self) -> pb.ConnectResponse | None:
        """Return the answer to Hello; None if it does not come in time."""
        try:
            return await asyncio.wait_for(self.read(), WELCOME_SECONDS)
        except TimeoutError:
            return None

    async def read(self) -> pb.ConnectResponse:
        """Return the next message. Raises _StreamEnded or AioRpcError."""
        reading, self._reading = self._read_ahead(), None
        try:
            message = await reading
        except grpc.aio.AioRpcError as error:
            if self._ended and error.code() is grpc.StatusCode.INTERNAL:  # grpc.aio reports a failed write so
                raise _StreamEnded from None
            raise
        if message is EOF:
            raise _StreamEnded
        response: pb.ConnectResponse = message
        return response

    async def poll(self) -> pb.ConnectResponse | None:
        """Return the next message if it has arrived."""
        done, _ = await asyncio.wait({self._read_ahead()}, timeout=0)
        return await self.read() if done else None

    def cancel(self) -> None:
        """Cancel the call and the pending read, whose error asyncio would log, since nobody awaits it."""
        if self._reading is not None:
            self._reading.cancel()
        self._call.cancel()

    def _read_ahead(self) -> asyncio.Task[pb.ConnectResponse]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        return self._reading
