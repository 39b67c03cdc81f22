"""Stand-ins that keep the contract they stand in for: a scripted gateway and collector over real gRPC.

`FakeServer` follows proto/README.md from the server's side and checks everything that a client sends; what it finds is
in `violations`. A script is a generator that is handed a `Peer`, waits for messages with its methods and yields
responses.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Self

import grpc
import numpy as np

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol import simulation_pb2_grpc as rpc
from ludus.protocol.codec import (
    ActionBatch,
    BehaviorBatch,
    BehaviorLayout,
    CloseCode,
    ProtocolError,
    decode_stats,
    decode_step,
    encode_actions,
    spec_from_message,
)
from ludus.protocol.options import REASON_METADATA, STATE_METADATA, TICKET_METADATA, server_options

Script = Callable[["Peer"], Iterator[pb.ConnectResponse]]
Joiner = Callable[["FakeServer", pb.JoinRequest, grpc.ServicerContext], pb.JoinResponse]

RUN_ID = "run-fake"
TICKET = "fake-ticket"
SECONDS = 20
LAST_WORDS_SECONDS = 0.5


class Violation(Exception):
    """A client broke the contract."""


class Peer:
    """One stream, seen by the server: receives and checks messages, builds responses."""

    def __init__(
        self, server: "FakeServer", requests: Iterator[pb.ConnectRequest], context: grpc.ServicerContext
    ) -> None:
        self.server = server
        self.context = context
        self.metadata = dict(context.invocation_metadata())
        self.layouts: dict[str, BehaviorLayout] = {}
        self.waiting: dict[str, set[int]] = {}
        self.running: dict[str, set[int]] = {}
        """Agents whose episode runs."""
        self.episodes = 0
        self.reset_id = 0
        self.last_step = 0
        self.session_id = ""
        self._requests = requests

    def hello(self) -> pb.Hello:
        """Wait for Hello, the first message."""
        message = self._next()
        self._check(message.HasField("hello"), f"the first message is {message.WhichOneof('message')}, not hello")
        hello = message.hello
        self._check(hello.protocol_version == 1, f"protocol version {hello.protocol_version}")
        self._check(self.metadata.get(TICKET_METADATA) == hello.ticket, f"metadata {TICKET_METADATA} is not the ticket")
        if not self.server.behind_gateway:
            self._check(hello.session_id in self.server.session_ids, f"session id {hello.session_id!r} never joined")
            self._check(hello.ticket == TICKET, f"ticket {hello.ticket!r}")
        self.session_id = hello.session_id
        self._announce(hello.behaviors)
        return hello

    def step(self) -> tuple[int, list[BehaviorBatch]]:
        """Wait for a step that obeys the last Reset and in which somebody asks for an action."""
        while True:
            message = self._next()
            if message.HasField("announce"):
                self._announce(message.announce.behaviors)
                continue
            self._check(message.HasField("step"), f"{message.WhichOneof('message')} instead of a step")
            step = message.step
            self._check(step.step_id > self.last_step, f"step {step.step_id} follows step {self.last_step}")
            self.last_step = step.step_id
            if step.reset_id < self.reset_id:
                continue
            batches = decode_step(step, self.layouts)
            self.server.stats.extend(decode_stats(step))
            for batch in batches:
                self._account(batch)
            if any(batch.decisions is not None for batch in batches):
                return step.step_id, batches

    def welcome(self, parameters: dict[str, float] | None = None) -> pb.ConnectResponse:
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
        self.reset_id += 1
        self.waiting.clear()
        self.running.clear()
        return pb.ConnectResponse(reset=pb.Reset(reset_id=self.reset_id, environment_parameters=parameters or {}))

    def close(self, code: CloseCode = CloseCode.RUN_FINISHED, reason: str = "enough") -> pb.ConnectResponse:
        return pb.ConnectResponse(close=pb.Close(code=code, reason=reason, rejoin=code.rejoin))

    def play(self, steps: int) -> Iterator[pb.ConnectResponse]:
        """Answer so many steps wholly and at once."""
        for _ in range(steps):
            yield self.answer(*self.step(), name_agents=False)

    def _next(self) -> pb.ConnectRequest:
        for message in self._requests:
            return message
        raise Violation("the client ended the stream")

    def _announce(self, specs: Any) -> None:
        for message in specs:
            spec = spec_from_message(message)
            self.layouts[spec.name] = BehaviorLayout(spec)

    def _account(self, batch: BehaviorBatch) -> None:
        waiting = self.waiting.setdefault(batch.behavior, set())
        running = self.running.setdefault(batch.behavior, set())
        if batch.terminals is not None:
            ended = set(batch.terminals.agent_ids.tolist())
            self._check(ended <= running, f"agents {ended - running} ended episodes that never began")
            waiting -= ended
            running -= ended
            self.episodes += len(ended)
        if batch.decisions is not None:
            asking = set(batch.decisions.agent_ids.tolist())
            self._check(not asking & waiting, f"agents {asking & waiting} ask while they wait")
            waiting |= asking
            running |= asking

    def _act(self, batch: BehaviorBatch, rows: slice, name_agents: bool) -> ActionBatch:
        decisions, spec = batch.decisions, self.layouts[batch.behavior].spec
        assert decisions is not None
        ids = decisions.agent_ids[rows]
        self.waiting[batch.behavior] -= set(ids.tolist())
        discrete = np.zeros((len(ids), len(spec.actions.discrete_branches)), np.int32)
        if decisions.action_masks is not None:
            starts = self.layouts[batch.behavior].branch_starts.tolist()
            ends = [*starts[1:], spec.actions.mask_size]
            for column, (start, end) in enumerate(zip(starts, ends, strict=True)):
                discrete[:, column] = decisions.action_masks[rows, start:end].argmax(axis=1)
        continuous = np.zeros((len(ids), spec.actions.continuous_size), np.float32)
        return ActionBatch(batch.behavior, ids if name_agents else None, continuous, discrete)

    def _check(self, fact: object, problem: str) -> None:
        if not fact:
            raise Violation(problem)


def finish_after(steps: int) -> Script:
    """Script: welcome, answer so many steps, finish the run."""

    def script(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        yield peer.welcome()
        yield from peer.play(steps)
        yield peer.close()

    return script


def assign(server: "FakeServer", request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    """Joiner: the run is ready."""
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


class FakeServer(rpc.SimulationServiceServicer):
    """Gateway and collector in one, on a free port of the loopback.

    The first stream plays the first script, the second one the second, and so on. `behind_gateway` makes it a collector
    alone, whose simulators joined and got their tickets elsewhere.
    """

    def __init__(
        self,
        *scripts: Script,
        join: Joiner = assign,
        token: str | None = None,
        port: int = 0,
        behind_gateway: bool = False,
    ) -> None:
        self.behind_gateway = behind_gateway
        self.joins: list[pb.JoinRequest] = []
        self.reports: list[pb.ReportRequest] = []
        self.streams: list[Peer] = []
        self.violations: list[str] = []
        self.stats: list[Any] = []
        self._scripts = scripts
        self._join = join
        self._token = token
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(16), options=server_options())
        rpc.add_SimulationServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"

    @property
    def session_ids(self) -> set[str]:
        return {join.session_id for join in self.joins}

    def Join(  # noqa: N802  gRPC's name
        self, request: pb.JoinRequest, context: grpc.ServicerContext
    ) -> pb.JoinResponse:
        with self._lock:
            self.joins.append(request)
        given = dict(context.invocation_metadata()).get("authorization")
        if self._token is not None and given != f"Bearer {self._token}":
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "the token is wrong")
        return self._join(self, request, context)

    def Report(self, request: pb.ReportRequest, _: grpc.ServicerContext) -> pb.ReportResponse:  # noqa: N802  likewise
        self.reports.append(request)
        return pb.ReportResponse()

    def Connect(  # noqa: N802  gRPC's name
        self, request_iterator: Iterator[pb.ConnectRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ConnectResponse]:
        peer = Peer(self, request_iterator, context)
        with self._lock:
            self.streams.append(peer)
            number = len(self.streams) - 1
        if number >= len(self._scripts):
            self.violations.append(f"stream {number} was opened, only {len(self._scripts)} were expected")
            yield peer.close(CloseCode.RUN_FAILED, "one stream too many")
            return
        try:
            yield from self._scripts[number](peer)
        except (Violation, ProtocolError) as problem:
            self.violations.append(f"stream {number}: {problem}")
            yield peer.close(CloseCode.RUN_FAILED, str(problem))
        # gRPC forgets what a client has not read when the call ends while it writes: let it read the Close first.
        over = threading.Event()
        if context.add_callback(over.set):
            over.wait(LAST_WORDS_SECONDS)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=0.5).wait(SECONDS)
