"""A server that plays a script to each stream of a client: gateway and collector in one, over real gRPC.

`ScriptedServer` follows proto/README.md from the server's side and checks everything that a client sends; it collects
the violations in `violations`. A script is a generator that is handed a `Peer`, waits for messages with its methods and
yields responses.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, Self

import grpc
import numpy as np

from ludus.collector.visual_encoders import DEFAULT_ENCODER
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol import simulation_pb2_grpc as rpc
from ludus.protocol.batches import ActionBatch, BehaviorBatch, StatValue
from ludus.protocol.codec import decode_stats, encode_actions
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import check_hello, hello_missing
from ludus.protocol.options import REASON_METADATA, STATE_METADATA, TICKET_METADATA, server_options
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import spec_from_message
from ludus.sdk.contract.served_stream import RUN_ID, ServedStream, shortened

Script = Callable[["Peer"], Iterator[pb.ConnectResponse]]
JoinHandler = Callable[["ScriptedServer", pb.JoinRequest, grpc.ServicerContext], pb.JoinResponse]

TICKET: Final = "fake-ticket"
STOP_SECONDS: Final = 20
LAST_WORDS_SECONDS: Final = 0.5


class Violation(Exception):
    """A client did not do what the script waits for."""


class Peer(ServedStream):
    """One stream, seen by the server: receives and checks messages, builds responses."""

    def __init__(
        self, server: "ScriptedServer", requests: Iterator[pb.ConnectRequest], context: grpc.ServicerContext
    ) -> None:
        super().__init__(server.specs, server.visual_encoder)
        self.server = server
        self.context = context
        self.metadata = dict(context.invocation_metadata())
        self.awaits = "Hello"
        self._requests = requests

    def hello(self) -> pb.Hello:
        """Wait for Hello, the first message."""
        message = self._next()
        if not message.HasField("hello"):
            raise hello_missing()
        hello = message.hello
        check_hello(hello, greeted=False)
        if self.metadata.get(TICKET_METADATA) != hello.ticket:
            raise Violation(f"the metadata {TICKET_METADATA} is not the ticket in Hello; both must be the assignment's")
        if not self.server.behind_gateway:
            if hello.session_id not in self.server.session_ids:
                raise Violation(f"the session id {hello.session_id!r} in Hello is none with which Join was called")
            if hello.ticket != TICKET:
                raise ProtocolError(CloseCode.BAD_TICKET, "the ticket is none of this server's")
        self.session_id = hello.session_id
        self._announce(hello.behaviors)
        return hello

    def step(self) -> tuple[int, list[BehaviorBatch]]:
        """Wait for a step that obeys the last Reset and in which an agent asks for an action."""
        self.awaits = "a step in which an agent asks" + (f", with reset_id {self.reset_id}" if self.reset_id else "")
        while True:
            message = self._next()
            if message.HasField("announce"):
                self._announce(message.announce.behaviors)
                continue
            if not message.HasField("step"):
                kind = message.WhichOneof("message") or "a message of an unknown kind"
                raise ProtocolError(CloseCode.UNEXPECTED_MESSAGE, f"{kind} came where a step was expected")
            step = message.step
            batches = self.read_step(step)
            if step.reset_id < self.reset_id:
                self.awaits = f"a step with reset_id {self.reset_id}; the last one has {step.reset_id}, and is ignored"
                continue
            self.server.stats.extend(decode_stats(step))
            for batch in batches:
                # A real server ignores the end of an episode that never began, but its author did not mean it.
                ended = set() if batch.terminals is None else set(batch.terminals.agent_ids.tolist())
                if never_began := ended - self.running[batch.behavior]:
                    which = shortened(sorted(never_began))
                    raise Violation(f"a step ends episodes of agents {which}, which never began")
                self.account(batch)
            if any(batch.decisions is not None for batch in batches):
                return step.step_id, batches

    def welcome(self, parameters: dict[str, float] | None = None) -> pb.ConnectResponse:
        """Return Welcome."""
        return pb.ConnectResponse(
            welcome=pb.Welcome(
                run_id=RUN_ID,
                simulator_number=3,
                seed=45,
                environment_parameters=parameters or {},
                max_message_bytes=1 << 20,
                step_timeout_seconds=60,
            )
        )

    def answer(
        self, step_id: int, batches: list[BehaviorBatch], rows: slice = slice(None), *, name_agents: bool = True
    ) -> pb.ConnectResponse:
        """Answer some of a step's agents: zeros and the first choices, or the first that is allowed."""
        parts = [self._act(batch, rows, name_agents) for batch in batches if batch.decisions is not None]
        return pb.ConnectResponse(actions=encode_actions(step_id, parts))

    def reset(self, parameters: dict[str, float] | None = None) -> pb.ConnectResponse:
        """Return the next Reset, after which no agent plays or waits."""
        self.begin_reset()
        return pb.ConnectResponse(reset=pb.Reset(reset_id=self.reset_id, environment_parameters=parameters or {}))

    def close(self, code: CloseCode = CloseCode.RUN_FINISHED, reason: str = "enough") -> pb.ConnectResponse:
        """Return Close."""
        self.awaits = "the client's end"
        return pb.ConnectResponse(close=pb.Close(code=code, reason=reason, rejoin=code.rejoin))

    def play(self, steps: int) -> Iterator[pb.ConnectResponse]:
        """Answer so many steps wholly and at once."""
        for _ in range(steps):
            yield self.answer(*self.step(), name_agents=False)

    def _next(self) -> pb.ConnectRequest:
        try:
            for message in self._requests:
                return message
        except grpc.RpcError:
            raise Violation("the client broke the stream off") from None
        raise Violation("the client half-closed the stream, and has not been told to leave")

    def _announce(self, specs: Iterable[pb.BehaviorSpec]) -> None:
        for message in specs:
            self.introduce(spec_from_message(message))

    def _act(self, batch: BehaviorBatch, rows: slice, name_agents: bool) -> ActionBatch:
        decisions, spec = batch.decisions, self.layouts[batch.behavior].spec
        assert decisions is not None
        ids = decisions.agent_ids[rows]
        self.stop_waiting(batch.behavior, ids.tolist())
        discrete = np.zeros((len(ids), len(spec.actions.discrete_branches)), np.int32)
        if decisions.action_masks is not None:
            starts = self.layouts[batch.behavior].branch_starts.tolist()
            ends = [*starts[1:], spec.actions.mask_size]
            for column, (start, end) in enumerate(zip(starts, ends, strict=True)):
                discrete[:, column] = decisions.action_masks[rows, start:end].argmax(axis=1)
        continuous = np.zeros((len(ids), spec.actions.continuous_size), np.float32)
        return ActionBatch(batch.behavior, ids if name_agents else None, continuous, discrete)


def finish_after(steps: int) -> Script:
    """Return the script that welcomes, answers so many steps and finishes the run."""

    def script(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        yield peer.welcome()
        yield from peer.play(steps)
        yield peer.close()

    return script


def assign(server: "ScriptedServer", request: pb.JoinRequest, _: grpc.ServicerContext) -> pb.JoinResponse:
    """Answer Join with an assignment: the run is ready."""
    return pb.JoinResponse(
        assignment=pb.Assignment(
            address="" if request.relay else server.address,
            ticket=TICKET,
            ticket_valid_seconds=60,
            relay=request.relay,
            simulator_number=3,
            run_id=RUN_ID,
        )
    )


def refuse(
    context: grpc.ServicerContext, status: grpc.StatusCode, reason: str, details: str, state: str = ""
) -> NoReturn:
    """Fail a call as the gateway does."""
    context.set_trailing_metadata(((REASON_METADATA, reason), *(((STATE_METADATA, state),) if state else ())))
    context.abort(status, details)
    raise AssertionError("abort returns never")


class ScriptedServer(rpc.SimulationServiceServicer):
    """Gateway and collector in one, on a free port of the loopback.

    The first stream plays the first script, the second one the second, and so on. `behind_gateway` makes it a collector
    alone, whose simulators joined and got their tickets elsewhere. `visual_encoder` says how small pictures may be.
    """

    def __init__(
        self,
        *scripts: Script,
        join: JoinHandler = assign,
        token: str | None = None,
        port: int = 0,
        behind_gateway: bool = False,
        visual_encoder: str = DEFAULT_ENCODER,
    ) -> None:
        self.behind_gateway = behind_gateway
        self.visual_encoder = visual_encoder
        self.specs: dict[str, BehaviorSpec] = {}
        """The announced spec of each behavior: all streams must agree."""
        self.joins: list[pb.JoinRequest] = []
        self.reports: list[pb.ReportRequest] = []
        self.streams: list[Peer] = []
        self.violations: list[str] = []
        self.stats: list[StatValue] = []
        self._scripts = scripts
        self._join = join
        self._token = token
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(16), options=server_options())
        rpc.add_SimulationServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"

    @property
    def session_ids(self) -> set[str]:
        """The session ids with which Join was called."""
        return {join.session_id for join in self.joins}

    def Join(  # noqa: N802  gRPC's name
        self, request: pb.JoinRequest, context: grpc.ServicerContext
    ) -> pb.JoinResponse:
        """Record the call; answer as the handler says."""
        with self._lock:
            self.joins.append(request)
        shown = dict(context.invocation_metadata()).get("authorization")
        if self._token is not None and shown != f"Bearer {self._token}":
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "the token is wrong")
        return self._join(self, request, context)

    def Report(self, request: pb.ReportRequest, _: grpc.ServicerContext) -> pb.ReportResponse:  # noqa: N802  likewise
        """Record the call."""
        self.reports.append(request)
        return pb.ReportResponse()

    def Connect(  # noqa: N802  gRPC's name
        self, request_iterator: Iterator[pb.ConnectRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ConnectResponse]:
        """Play the stream's script; record what the client does wrong, and close the stream then."""
        peer = Peer(self, request_iterator, context)
        with self._lock:
            self.streams.append(peer)
            number = len(self.streams) - 1
        if number >= len(self._scripts):
            self.violations.append(
                f"stream {number} was opened, and {len(self._scripts)} were expected (they count from 0)"
            )
            yield peer.close(CloseCode.RUN_FAILED, "one stream too many")
            return
        try:
            yield from self._scripts[number](peer)
        except ProtocolError as error:
            self.violations.append(f"stream {number}: {error.code.value}: {error.message}")
            yield peer.close(error.code, error.message)
        except Violation as problem:
            self.violations.append(f"stream {number}: {problem}")
            yield peer.close(CloseCode.RUN_FAILED, str(problem))
        # gRPC forgets what a client has not read when the call ends while it writes: let it read the Close first.
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait(LAST_WORDS_SECONDS)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=0.5).wait(STOP_SECONDS)
