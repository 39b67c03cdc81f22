"""A run as a bridge sees it, written from the contract: a gateway that can wait, collectors that can die.

And a game as a bridge sees it: a client that makes one call after the other, as Unity's communicator does. What either
side does wrong is in `violations`.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

import grpc

from ludus.games.unity.messages import GOODBYE
from ludus.protocol import simulation_pb2 as v1
from ludus.protocol.codes import CloseCode
from ludus.protocol.mlagents import agent_pb2
from ludus.protocol.mlagents import unity_pb2 as pb
from ludus.protocol.options import (
    CLIENT_METADATA,
    CLOSE_METADATA,
    EXCHANGE,
    PARKS_METADATA,
    REASON_METADATA,
    SESSION_ID_METADATA,
    STATE_METADATA,
    TICKET_METADATA,
    server_options,
)

RUN_ID = "run-fake"
BALL = "3DBall?team=0"
WALL = "Wall?team=1"
FRAMES = b"the run's frames"
SECONDS = 20
CAPABILITIES = pb.UnityRLCapabilitiesProto(baseRLCapabilities=True, hybridActions=True)


class SessionEnds(Exception):
    """A collector ends a session with a Close."""

    def __init__(self, code: CloseCode, reason: str = "enough") -> None:
        super().__init__(reason)
        self.close = v1.Close(code=code, reason=reason, rejoin=code.rejoin)


@dataclass
class Session:
    """What a collector knows of one session id."""

    session_id: str
    collector: int
    calls: int = 0
    messages: list[bytes] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    """Behaviors that were announced together with agents, in that order."""
    closed_by_game: bool = False
    parks: bool = False
    """Whether its calls say that it may fall silent."""
    pending: list[grpc.ServicerContext] = field(default_factory=list)
    """Its calls that have not been replied to."""


Step = Callable[[Session, pb.UnityMessageProto], None]
"""Called for each step of a game: may block, raise SessionEnds, or do nothing."""


class FakeRun:
    """A gateway, and one collector at a time behind it."""

    def __init__(self, on_step: Step | None = None, side_channel: bytes = FRAMES) -> None:
        self.joins: list[v1.JoinRequest] = []
        self.sessions: list[Session] = []
        self.run_reporter: list[v1.ReportRequest] = []
        self.takes_words = True
        """Whether the gateway has a Report; it is younger than Join."""
        self.unheard = 0
        """Words that were not taken."""
        self.violations: list[str] = []
        self.waits = 0
        """How many Joins were told to wait."""
        self.paused = ""
        """Why Joins are told to wait; empty: they are not."""
        self.ended = ""
        """The final state of the run."""
        self.ready = threading.Event()
        """Whether second calls are answered."""
        self.ready.set()
        self.steps = 0
        self.token: str | None = None
        self.max_message_bytes = 64 << 20
        self.on_step = on_step or (lambda _session, _message: None)
        self.side_channel = side_channel
        self._lock = threading.Lock()
        self._gateway = self._serve({"ludus.v1.SimulationService": {"Join": self._join, "Report": self._report}})
        self.address = self._gateway[1]
        self._collector: tuple[grpc.Server, str] | None = None
        self._collectors = 0
        self.start_collector()

    def start_collector(self) -> None:
        """Listen on another port; sessions of earlier collectors are not known there."""
        service, _, method = EXCHANGE[1:].partition("/")
        self._collectors += 1
        self._run_process: dict[str, Session] = {}
        self._collector = self._serve({service: {method: self._exchange}})

    def kill_collector(self) -> None:
        """Drop all connections."""
        assert self._collector is not None
        self._collector[0].stop(0)
        self._collector = None

    def restart_collector(self) -> None:
        """Let the sessions end, and others begin."""
        self.kill_collector()
        self.start_collector()

    def stop_gateway(self) -> None:
        """Drop all connections, and take no new ones."""
        self._gateway[0].stop(0).wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ready.set()
        self._gateway[0].stop(0).wait(SECONDS)
        if self._collector is not None:
            self._collector[0].stop(0).wait(SECONDS)

    def _serve(self, services: dict[str, dict[str, Any]]) -> tuple[grpc.Server, str]:
        server = grpc.server(ThreadPoolExecutor(16), options=server_options(self.max_message_bytes))
        for service, methods in services.items():
            handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        return server, address

    def _join(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = v1.JoinRequest.FromString(data)
        self.joins.append(request)
        self._authenticate(context)
        if self.ended:
            _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "run_ended", self.ended)
        if self.paused or self._collector is None:
            self.waits += 1
            wait = v1.Wait(reason=self.paused or "no collector", retry_after_seconds=0.1)
            return v1.JoinResponse(wait=wait).SerializeToString()
        assignment = v1.Assignment(
            address=self._collector[1],
            ticket=f"ticket of {request.session_id} at {self._collectors}",
            ticket_valid_seconds=60,
            simulator_number=len({join.session_id for join in self.joins}) - 1,
            run_id=RUN_ID,
        )
        return v1.JoinResponse(assignment=assignment).SerializeToString()

    def _report(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        self._authenticate(context)
        if not self.takes_words:
            self.unheard += 1
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        self.run_reporter.append(v1.ReportRequest.FromString(data))
        return v1.ReportResponse().SerializeToString()

    def _authenticate(self, context: grpc.ServicerContext) -> None:
        given = dict(context.invocation_metadata()).get("authorization")
        if self.token is not None and given != f"Bearer {self.token}":
            _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")

    def _exchange(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = dict(context.invocation_metadata())
        session_id = str(metadata[SESSION_ID_METADATA])
        self._check(metadata[CLIENT_METADATA].startswith("ludus-unity"), "the client is not named")
        self._check(
            metadata[TICKET_METADATA] == f"ticket of {session_id} at {self._collectors}", "the ticket is another's"
        )
        message = pb.UnityMessageProto.FromString(data)
        with self._lock:
            session = self._run_process.get(session_id)
            if session is None:
                if not context.is_active():  # a step that the bridge broke off, and that its goodbye has overtaken
                    return GOODBYE
                if message.header.status != 200:
                    _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "step_before_hello")
                session = Session(session_id, self._collectors, parks=PARKS_METADATA in metadata)
                self._run_process[session_id] = session
                self.sessions.append(session)
        self._check(not any(call.is_active() for call in session.pending), "two calls at once")
        session.pending.append(context)
        self._check(session.parks == (PARKS_METADATA in metadata), "some calls say that the game parks, some do not")
        try:
            session.calls += 1
            session.messages.append(data)
            reply = self._reply(session, message).SerializeToString()
            session.replies.append(reply)
        except SessionEnds as end:
            self._run_process.pop(session_id, None)
            context.set_trailing_metadata(((CLOSE_METADATA, end.close.SerializeToString()),))
            return GOODBYE
        finally:
            session.pending.remove(context)
        return reply

    def _reply(self, session: Session, message: pb.UnityMessageProto) -> pb.UnityMessageProto:
        reply = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
        if message.header.status != 200:
            session.closed_by_game = True
            raise SessionEnds(CloseCode.RUN_FINISHED)
        if session.calls == 1:
            said = message.unity_output.rl_initialization_output
            self._check(said.communication_version == "1.5.0", "the first call is no introduction")
            reply.unity_input.rl_initialization_input.CopyFrom(
                pb.UnityRLInitializationInputProto(seed=45, communication_version="1.5.0", num_areas=1)
            )
        elif session.calls == 2:
            self._check(not message.HasField("unity_output"), "the second call says something")
            self.ready.wait(SECONDS)
            reply.unity_input.rl_input.command = pb.RESET
            reply.unity_input.rl_input.side_channel = self.side_channel
        else:
            self._step(session, message, reply)
        return reply

    def _step(self, session: Session, message: pb.UnityMessageProto, reply: pb.UnityMessageProto) -> None:
        agents = message.unity_output.rl_output.agentInfos
        for parameters in message.unity_output.rl_initialization_output.brain_parameters:
            if agents[parameters.brain_name].value:
                self._check(parameters.brain_name not in session.known, f"{parameters.brain_name} announced twice")
                session.known.append(parameters.brain_name)
        self.steps += 1
        self.on_step(session, message)
        for behavior, infos in agents.items():
            self._check(not infos.value or behavior in session.known, f"{behavior} was not announced")
            for info in infos.value:
                if not info.done:
                    reply.unity_input.rl_input.agent_actions[behavior].value.add(continuous_actions=[0.25, -0.25])

    def _check(self, fact: object, problem: str) -> None:
        if not fact:
            self.violations.append(problem)


def _refuse(context: grpc.ServicerContext, status: grpc.StatusCode, reason: str, state: str = "") -> NoReturn:
    context.set_trailing_metadata(((REASON_METADATA, reason), *(((STATE_METADATA, state),) if state else ())))
    context.abort(status, f"refused: {reason}")
    raise AssertionError("abort returns never")


class Game:
    """A Unity game's end of the wire: one call at a time, to `localhost`, without a deadline."""

    def __init__(self, port: int, host: str = "localhost") -> None:
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", 64 << 20),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.use_local_subchannel_pool", 1),  # another game is another process, with connections of its own
        ]
        self._channel = grpc.insecure_channel(f"{host}:{port}", options)
        self._call = self._channel.unary_unary(EXCHANGE)
        self._known: set[str] = set()
        self.sent: list[bytes] = []
        self.heard: list[bytes] = []
        self.resets = 0

    def exchange(self, message: pb.UnityMessageProto) -> pb.UnityMessageProto:
        self.sent.append(message.SerializeToString())
        self.heard.append(self._call(self.sent[-1], timeout=SECONDS, wait_for_ready=True))
        reply = pb.UnityMessageProto.FromString(self.heard[-1])
        self.resets += reply.unity_input.rl_input.command == pb.RESET
        return reply

    def introduce(self) -> pb.UnityMessageProto:
        return self.exchange(introduction())

    def get_ready(self) -> pb.UnityMessageProto:
        return self.exchange(make_message())

    def begin(self) -> Self:
        assert self.introduce().header.status == 200
        assert self.get_ready().unity_input.rl_input.command == pb.RESET
        return self

    def step(self, *behaviors: str, agents: int = 2, floats: int = 8, cameras: bool = False) -> pb.UnityMessageProto:
        """Ask for actions of some behaviors; those that are asked for the first time are announced, and once only."""
        message = make_message(pb.UnityOutputProto())
        for behavior in behaviors or (BALL,):
            if behavior not in self._known:
                self._announce(message, behavior)
        for behavior in self._known:
            infos = message.unity_output.rl_output.agentInfos[behavior]
            for agent in range(agents if behavior in (behaviors or (BALL,)) else 0):
                info = infos.value.add(id=agent, reward=0.1)
                info.observations.add(shape=[floats]).float_data.data.extend([0.5] * floats)
                if cameras:
                    info.observations.add(shape=[3, 2, 2]).float_data.data.extend([0.5] * 12)
        return self.exchange(message)

    def play(self, *, cameras: bool = False) -> Iterator[pb.UnityMessageProto]:
        """Go on until a reply ends the conversation."""
        for _ in itertools.count():
            reply = self.step(cameras=cameras)
            yield reply
            if reply.header.status != 200:
                return

    def quit(self) -> None:
        """End the conversation as Unity does when Play is stopped."""
        self.exchange(pb.UnityMessageProto.FromString(GOODBYE))
        self.vanish()

    def vanish(self) -> None:
        self._channel.close()

    def _announce(self, message: pb.UnityMessageProto, behavior: str) -> None:
        self._known.add(behavior)
        message.unity_output.rl_initialization_output.brain_parameters.add(
            brain_name=behavior, is_training=True, action_spec=agent_pb2.ActionSpecProto(num_continuous_actions=2)
        )


def introduction() -> pb.UnityMessageProto:
    """Return a game's first call."""
    said = pb.UnityRLInitializationOutputProto(
        name="AcademySingleton", communication_version="1.5.0", package_version="3.0.0", capabilities=CAPABILITIES
    )
    return make_message(pb.UnityOutputProto(rl_initialization_output=said))


def make_message(output: pb.UnityOutputProto | None = None) -> pb.UnityMessageProto:
    return pb.UnityMessageProto(header=pb.HeaderProto(status=200), unity_output=output)
