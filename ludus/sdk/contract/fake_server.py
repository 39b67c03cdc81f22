"""A server for testing clients: gateway and collector of `ludus.v1` in one; it checks messages and trains nothing.

It answers with random valid actions, and on demand does the same as runs: reset simulators, make them wait, end, break
off. It prints each message in words, and each violation with its code.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NoReturn, Self

import grpc
import grpc.aio
import numpy as np

from ludus.collector.visual_encoders import DEFAULT_ENCODER
from ludus.http2.calls import BROKEN, EOF, StreamCall, UnaryCall
from ludus.play.players import RandomPlayer
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, BehaviorBatch, DecisionBatch, Floats, Ints
from ludus.protocol.codec import decode_stats, encode_actions
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import (
    HELLO_SECONDS,
    CallRefused,
    check_hello,
    check_saved,
    hello_timeout,
    parse_request,
    read_join,
    read_report,
    step_timeout,
)
from ludus.protocol.options import (
    MAX_MESSAGE_BYTES,
    REASON_METADATA,
    SERVICE,
    STATE_METADATA,
    TICKET_METADATA,
    server_options,
)
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import spec_from_message
from ludus.sdk.contract.served_stream import LATER_MESSAGE, RUN_ID, ServedStream, agents_text, step_text

LINGER_SECONDS: Final = 5.0
"""How long a stream stays open after Close, unless its client ends it. Real servers allow 1 s; a loaded developer's
machine may take longer."""
BREAKS: Final = "break"
"""The ending of a run that breaks the stream off, without `Close`."""
RETRY_SECONDS: Final = 0.2
LAST_WORDS_SECONDS: Final = 0.5
TICKET_SECONDS: Final = 60
ENDINGS: Final = {
    "finished": (CloseCode.RUN_FINISHED, "SUCCEEDED"),
    "cancelled": (CloseCode.RUN_CANCELLED, "CANCELLED"),
    "failed": (CloseCode.RUN_FAILED, "FAILED"),
    "paused": (CloseCode.RUN_PAUSED, ""),
    "moved": (CloseCode.RUN_MOVED, ""),
    BREAKS: (CloseCode.INTERNAL_ERROR, ""),
}
"""Ending of a stream after its steps -> the code of `Close`, and the run's final state, if the run ends."""
CLOSED_PORT: Final = 1
"""A port on which nothing listens."""


@dataclass(frozen=True)
class Behaviour:
    """Options of a fake server."""

    token: str | None = None
    """Bearer token that Join needs."""
    run: str | None = None
    """The only run. None: every name stands for one."""
    waits: int = 0
    """Number of joins that are answered with `wait` first."""
    advertise: str | None = None
    """Host in the address of assignments. None: the one at which the server listens."""
    unreachable: bool = False
    """Assign an address at which nothing listens: a client has to ask for relay."""
    steps: int | None = None
    """Answered steps after which a stream ends. None: never."""
    ending: str = "finished"
    reset_every: int | None = None
    save_every: int | None = None
    """Send Save before the answer to every n-th step to simulators that can go back."""
    delay_seconds: float = 0.0
    split: bool = False
    """Answer the agents of a step one by one, the last one first."""
    future: bool = False
    """Send a message that no client knows before each answer."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Environment parameters; each Reset adds 1 to them, so that they differ."""
    script: Sequence[tuple[Sequence[float], Sequence[int]]] = ()
    """Continuous and discrete actions that are taken in turn, in place of random ones."""
    vis_encode_type: str = DEFAULT_ENCODER
    """The visual encoder of the run's `network_settings`, which says how small pictures may be."""
    seed: int = 0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    step_timeout_seconds: float = 60.0
    tls: grpc.ServerCredentials | None = None


class _Ending(ProtocolError):
    """The server closes the stream, and its client did nothing wrong."""

    breaks = False
    """Whether the stream ends without Close."""


class FakeStream(ServedStream):
    """The server's end of one stream."""

    def __init__(self, server: "FakeServer", name: str, context: StreamCall) -> None:
        super().__init__(server.specs, server.behaviour.vis_encode_type)
        self.greeted = False
        self.superseded = asyncio.Event()
        self._server = server
        self._behaviour = server.behaviour
        self._name = name
        self._context = context
        self._reading: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._players: dict[str, RandomPlayer] = {}
        self._saves = self._steps = self._scripted = 0
        self._resumes = False
        self._resumed_agents: dict[str, set[int]] | None = None
        """Agents that waited at the position in Welcome; None after the first step."""
        self._unsaved: list[tuple[int, list[BehaviorBatch]]] = []
        """Steps whose answer waits for Saved."""
        self._due: deque[tuple[float, int, list[BehaviorBatch]]] = deque()
        """Steps with the times of their answers. Messages are read meanwhile, as by a real server."""
        self._deadline = time.monotonic() + HELLO_SECONDS
        """When the client must have sent Hello, or have asked again after actions."""

    async def play(self) -> None:
        """Read messages until the client leaves. Raises ProtocolError, also for an end that is no mistake."""
        superseded = asyncio.ensure_future(self.superseded.wait())
        self._reading = asyncio.ensure_future(self._context.read())
        try:
            while True:
                answers_next = bool(self._due) and self._due[0][0] <= self._deadline
                until = self._due[0][0] if answers_next else self._deadline
                done, _ = await asyncio.wait(
                    {superseded, self._reading},
                    timeout=None if until == inf else max(0.0, until - time.monotonic()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if superseded in done:
                    raise _Ending(CloseCode.SUPERSEDED, "a newer stream of this session id took its place")
                if done:
                    data = self._reading.result()
                    if data is EOF:
                        self._say("the client half-closed: it leaves")
                        return
                    await self._receive(data)
                    self._reading = asyncio.ensure_future(self._context.read())
                elif answers_next:
                    _, step_id, asks = self._due.popleft()
                    await self._respond(step_id, asks)
                else:
                    raise step_timeout(self._behaviour.step_timeout_seconds) if self.greeted else hello_timeout()
        except BROKEN:
            self._say("the connection broke")
        finally:
            superseded.cancel()

    async def linger(self) -> None:
        """Read until the client ends the stream: a client whose write fails loses the messages that it has not read."""
        with suppress(TimeoutError, *BROKEN):  # the client has gone, or does not end the stream
            async with asyncio.timeout(LINGER_SECONDS):
                await self._reading
                while await self._context.read() is not EOF:
                    pass

    async def _receive(self, data: bytes) -> None:
        request = parse_request(data, self._behaviour.max_message_bytes, greeted=self.greeted)
        kind = request.WhichOneof("message")
        if kind == "hello":
            await self._hello(request.hello)
        elif kind == "announce":
            if not request.announce.behaviors:
                self._violation("Announce names no behavior; it introduces at least one")
            for message in request.announce.behaviors:
                self._announce(spec_from_message(message), "Announce")
        elif kind == "saved":
            await self._saved(request.saved)
        else:
            await self._step(request.step)

    async def _hello(self, hello: pb.Hello) -> None:
        self._say(
            f"Hello: session id {hello.session_id!r}, client {hello.client!r}, protocol version "
            f"{hello.protocol_version}, {len(hello.behaviors)} behaviors{', resumes' if hello.resumes else ''}"
        )
        check_hello(hello, greeted=self.greeted)
        self.session_id, self._resumes = hello.session_id, hello.resumes
        ticket = metadata_of(self._context).get(TICKET_METADATA)
        if ticket is not None and ticket != hello.ticket:
            self._violation(f"the metadata {TICKET_METADATA} is not the ticket in Hello; both must be the assignment's")
        number = self._server.greet(self, hello.ticket)
        specs = [spec_from_message(message) for message in hello.behaviors]
        self.greeted, self._deadline = True, inf
        position = None
        if self._resumes:
            position, self._resumed_agents = self._server.positions.pop(self.session_id, (None, None))
        welcome = pb.Welcome(
            run_id=RUN_ID,
            simulator_number=number,
            seed=self._behaviour.seed + number,
            environment_parameters=self._parameters(),
            max_message_bytes=self._behaviour.max_message_bytes,
            step_timeout_seconds=self._behaviour.step_timeout_seconds,
            position=position,
        )
        await self._write(pb.ConnectResponse(welcome=welcome))
        for spec in specs:
            self._announce(spec, "Hello")

    def _announce(self, spec: BehaviorSpec, message: str) -> None:
        observations = ", ".join(f"{part.dtype} {list(part.shape)}" for part in spec.observations)
        self._say(
            f"{message}: behavior {spec.name!r} sees {observations}; {spec.actions.continuous_size} continuous "
            f"actions, branches {list(spec.actions.discrete_branches)}"
        )
        self.introduce(spec)
        self._players.setdefault(spec.name, RandomPlayer(spec.actions, self._behaviour.seed))

    async def _step(self, step: pb.Step) -> None:
        batches = self.read_step(step)
        self._say(f"step {step.step_id}: {'; '.join(step_text(batches, decode_stats(step))) or 'nothing'}")
        self._check_resumed(step, batches)
        if step.reset_id < self.reset_id:
            self._say(f"  ignored: it names reset {step.reset_id}, the last one is {self.reset_id}")
            return
        for batch in batches:
            self.account(batch, lambda what: self._say(f"  ignored: {what}"))
        self._server.steps += 1
        self._deadline = inf
        asks = [batch for batch in batches if batch.decisions is not None]
        if asks and self._behaviour.delay_seconds and not self._unsaved:
            self._due.append((time.monotonic() + self._behaviour.delay_seconds, step.step_id, asks))
        elif asks:
            await self._respond(step.step_id, asks)

    def _check_resumed(self, step: pb.Step, batches: Sequence[BehaviorBatch]) -> None:
        expected, self._resumed_agents = self._resumed_agents, None
        if expected is None:
            if step.resumed:
                self._violation("the step says `resumed`, but Welcome named no position")
            return
        if not step.resumed:
            self._say("  it begins again, although Welcome named a position: that is allowed")
            return
        asking = {b.behavior: set(b.decisions.agent_ids.tolist()) for b in batches if b.decisions is not None}
        if asking != expected or step.stats or any(batch.terminals is not None for batch in batches):
            self._violation(
                f"a resumed step asks again for exactly the agents that waited then, {agents_text(expected)}, and has "
                f"no terminals and no stats; this one asks for {agents_text(asking)}. "
                "A run takes it as new (not_resumed)"
            )
        else:
            self._say("  it went back to where it was")

    async def _respond(self, step_id: int, asks: list[BehaviorBatch]) -> None:
        """Answer a step, or send a Reset or a Save in its place. Raises _Ending at the end of the run."""
        if self._unsaved:  # another step in flight while a Save is unanswered
            self._unsaved.append((step_id, asks))
            return
        behaviour, self._steps = self._behaviour, self._steps + 1
        if behaviour.steps is not None and self._steps > behaviour.steps:
            raise self._server.end_run()
        if behaviour.reset_every is not None and self._steps % behaviour.reset_every == 0:
            self.begin_reset()
            self._due.clear()
            parameters = self._parameters()
            self._say(f"  sent: Reset {self.reset_id}, environment parameters {parameters}")
            reset = pb.Reset(reset_id=self.reset_id, environment_parameters=parameters)
            await self._write(pb.ConnectResponse(reset=reset))
        elif self._resumes and behaviour.save_every is not None and self._steps % behaviour.save_every == 0:
            self._saves += 1
            self._unsaved.append((step_id, asks))
            self._say(f"  sent: Save {self._saves}")
            await self._write(pb.ConnectResponse(save=pb.Save(save_id=self._saves)))
        else:
            await self._answer(step_id, asks)

    async def _saved(self, saved: pb.Saved) -> None:
        self._say(f"Saved {saved.save_id}: {len(saved.position)} bytes")
        check_saved(saved, asked=self._saves)
        waiting = {name: set(agents) for name, agents in self.waiting.items() if agents}
        self._server.positions[self.session_id] = (saved.position, waiting)
        steps, self._unsaved = self._unsaved, []
        for step_id, asks in steps:
            await self._answer(step_id, asks)

    async def _answer(self, step_id: int, asks: Sequence[BehaviorBatch]) -> None:
        if self._behaviour.future:
            await self._context.write(LATER_MESSAGE)
        parts: list[ActionBatch] = []
        for name, decisions, _ in asks:
            assert decisions is not None
            # Agents that have ended since do not wait for this step any more: their answers would be void.
            agents, waiting = decisions.agent_ids.tolist(), self.waiting[name]
            rows = np.array([waiting.get(agent) == step_id for agent in agents], np.bool_)
            if not rows.any():
                continue
            continuous, discrete = self._act(name, decisions)
            self.stop_waiting(name, decisions.agent_ids[rows].tolist())
            chosen = np.flatnonzero(rows)
            # Like a real server, leave the agents out of an answer to all agents of a step.
            names_agents = self._behaviour.split or not rows.all()
            for part in reversed(np.split(chosen, len(chosen))) if self._behaviour.split else [chosen]:
                ids = decisions.agent_ids[part] if names_agents else None
                parts.append(ActionBatch(name, ids, continuous[part], discrete[part]))
        if not parts:
            return
        for message in [[part] for part in parts] if self._behaviour.split else [parts]:
            await self._write(pb.ConnectResponse(actions=encode_actions(step_id, message)))
        self._deadline = time.monotonic() + self._behaviour.step_timeout_seconds

    def _act(self, name: str, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        continuous, discrete = self._players[name].act(decisions)
        if not self._behaviour.script:
            return continuous, discrete
        starts, masks = self.layouts[name].branch_starts.tolist(), decisions.action_masks
        for row in range(len(decisions.agent_ids)):
            moves, choices = self._behaviour.script[self._scripted % len(self._behaviour.script)]
            self._scripted += 1
            for column, value in enumerate(moves[: continuous.shape[1]]):
                continuous[row, column] = value
            for branch, choice in enumerate(choices[: discrete.shape[1]]):
                exists = choice < self.specs[name].actions.discrete_branches[branch]
                if exists and (masks is None or masks[row, starts[branch] + choice]):
                    discrete[row, branch] = choice
                else:
                    why = "the mask forbids it" if exists else "there is no such choice"
                    self._say(f"  the script's choice {choice} of branch {branch} is replaced by a random one: {why}")
        return continuous, discrete

    def _parameters(self) -> dict[str, float]:
        return {name: value + self.reset_id for name, value in self._behaviour.parameters.items()}

    async def _write(self, response: pb.ConnectResponse) -> None:
        await self._context.write(response.SerializeToString())

    def _say(self, sentence: str) -> None:
        self._server.say(f"{self._name}: {sentence}")

    def _violation(self, sentence: str) -> None:
        self._server.violation(f"{self._name}: {sentence}")


class FakeServer:
    """Serves on one port, within a running event loop. A context.

    `say` gets each message and each violation; `violations` keeps the violations.
    """

    def __init__(self, behaviour: Behaviour, say: Callable[[str], object], *, host: str, port: int) -> None:
        self.behaviour = behaviour
        self.violations: list[str] = []
        self.steps = 0
        self.streams = 0
        self.ended = 0
        """Streams that have ended after Hello."""
        self.specs: dict[str, BehaviorSpec] = {}
        """The announced spec of each behavior: all simulators must agree."""
        self.say = say
        self._host = host
        self._wanted_port = port
        self._joins = 0
        self._numbers: dict[str, int] = {}
        """Session id -> number."""
        self._tickets: dict[str, tuple[str, bool]] = {}
        """Ticket that opens a stream -> session id, and whether it is relayed."""
        self._spent: set[str] = set()
        self._live: dict[str, FakeStream] = {}
        """Session id -> its newest stream."""
        self.positions: dict[str, tuple[bytes, dict[str, set[int]]]] = {}
        """Session id -> the position in its Saved, and the agents that waited then."""
        self._ended_with = ""
        """Final state of the run."""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=server_options(2 * self.behaviour.max_message_bytes + (1 << 20)))
        methods: Any = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join),
            "Report": grpc.unary_unary_rpc_method_handler(self._report),
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.strip("/"), methods),))
        address = f"{self._host}:{self._wanted_port}"
        if self.behaviour.tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self.behaviour.tls)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(LAST_WORDS_SECONDS)

    # Unary calls ------------------------------------------------------------------------------------------------

    async def _join(self, data: bytes, context: UnaryCall) -> bytes:
        await self._authenticate("Join", context)
        try:
            request = read_join(data)
        except CallRefused as error:
            await self._refuse(context, error)
        joined = f"Join: run {request.run!r}, session id {request.session_id!r}, label {request.label!r}, client "
        self.say(f"{joined}{request.client!r}{', asks for relay' if request.relay else ''}")
        if self.behaviour.run not in {None, request.run, RUN_ID}:
            await self._refuse(context, CallRefused("run_not_found", f"there is no run {request.run!r}"))
        if self._ended_with:
            self.say(f"  refused: run_ended, {STATE_METADATA} {self._ended_with}")
            refused = CallRefused("run_ended", f"the run has ended: {self._ended_with}", self._ended_with)
            await context.abort(refused.status, str(refused), refused.metadata)
        self._joins += 1
        if self._joins <= self.behaviour.waits:
            self.say(f"  answered: wait, {self._joins} of {self.behaviour.waits}")
            wait = pb.Wait(reason="the fake run is queued", retry_after_seconds=RETRY_SECONDS)
            return pb.JoinResponse(wait=wait).SerializeToString()
        return pb.JoinResponse(assignment=self._assign(request)).SerializeToString()

    def _assign(self, request: pb.JoinRequest) -> pb.Assignment:
        number = self._numbers.setdefault(request.session_id, len(self._numbers))
        ticket = secrets.token_hex(8)
        self._tickets[ticket] = (request.session_id, request.relay)
        port = CLOSED_PORT if self.behaviour.unreachable else self.port
        address = "" if request.relay else f"{self.behaviour.advertise or self._host}:{port}"
        self.say(f"  answered: assignment of simulator {number}, {'relay' if request.relay else address}")
        return pb.Assignment(
            address=address,
            ticket=ticket,
            ticket_valid_seconds=TICKET_SECONDS,
            relay=request.relay,
            tls=self.behaviour.tls is not None,
            simulator_number=number,
            run_id=RUN_ID,
        )

    async def _report(self, data: bytes, context: UnaryCall) -> bytes:
        await self._authenticate("Report", context)
        try:
            request = read_report(data)
        except CallRefused as error:
            await self._refuse(context, error)
        self.say(f"Report: {request.code}: {request.sentence}")
        return pb.ReportResponse().SerializeToString()

    async def _authenticate(self, call: str, context: UnaryCall) -> None:
        shown = metadata_of(context).get("authorization")
        if self.behaviour.token is not None and shown != f"Bearer {self.behaviour.token}":
            self.say(f"{call}: authorization {shown!r}")
            missing, wrong = "the metadata authorization is missing", "it is not 'Bearer TOKEN' of this server"
            await self._refuse(context, CallRefused("unauthenticated", missing if shown is None else wrong))

    async def _refuse(self, context: UnaryCall, error: CallRefused) -> NoReturn:
        self.violation(f"{error.code}: {error}")
        await context.abort(error.status, str(error), error.metadata)
        raise error  # `abort` has raised already

    # Streams ----------------------------------------------------------------------------------------------------

    async def _connect(self, _: AsyncIterator[bytes], context: StreamCall) -> None:
        ticket = metadata_of(context).get(TICKET_METADATA)
        name = f"stream {self.streams}"
        self.streams += 1
        self.say(f"{name}: opened by {context.peer()}")
        if ticket is None:
            self.violation(
                f"{name}: the metadata {TICKET_METADATA} is missing; a relayed stream is refused (bad_ticket)"
            )
        if self.behaviour.unreachable and (ticket is None or ticket not in self._tickets):
            # The gateway reads the metadata alone, and does not decode the stream.
            sentence = f"the metadata {TICKET_METADATA} is no ticket of this server"
            metadata = ((REASON_METADATA, "bad_ticket"),)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, sentence, metadata)
        stream = FakeStream(self, name, context)
        try:
            await stream.play()
        except ProtocolError as error:
            if not isinstance(error, _Ending):
                self.violation(f"{name}: {error.code.value}: {error.message}")
            elif error.breaks:
                self.say(f"{name}: broken off without Close; join again")
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the fake collector died")
            code, reason = error.code, error.message
            self.say(f"{name}: closed with {code.value}: {reason}{'; join again' if code.rejoin else ''}")
            message = pb.Close(code=code.value, reason=reason, rejoin=code.rejoin)
            await context.write(pb.ConnectResponse(close=message).SerializeToString())
            await stream.linger()
        finally:
            if self._live.get(stream.session_id) is stream:
                del self._live[stream.session_id]
            self.ended += stream.greeted  # also if the client goes during Close

    def greet(self, stream: FakeStream, ticket: str) -> int:
        """Take a stream whose Hello is well formed, and return its simulator's number. Raises ProtocolError."""
        if ticket in self._spent:
            message = "the ticket has opened a session already; join again for a fresh one"
            raise ProtocolError(CloseCode.TICKET_EXPIRED, message)
        if ticket not in self._tickets:
            raise ProtocolError(CloseCode.BAD_TICKET, "the ticket is none of this server's")
        session_id, _ = self._tickets[ticket]
        if session_id != stream.session_id:
            raise ProtocolError(CloseCode.BAD_TICKET, "the ticket was given to another session id")
        self._spent.add(ticket)
        older = self._live.get(session_id)
        self._live[session_id] = stream
        if older is not None:
            older.superseded.set()
        return self._numbers[session_id]

    def end_run(self) -> _Ending:
        """Return how the streams end, once one of them has played its steps."""
        code, self._ended_with = ENDINGS[self.behaviour.ending]
        end = _Ending(code, f"the fake run has ended after {self.behaviour.steps} steps ({self.behaviour.ending})")
        end.breaks = self.behaviour.ending == BREAKS
        return end

    def violation(self, sentence: str) -> None:
        """Print and keep a violation of the contract."""
        self.violations.append(sentence)
        self.say(f"VIOLATION: {sentence}")


def metadata_of(context: UnaryCall) -> dict[str, str]:
    """Return the metadata of a call."""
    return {str(key): str(value) for key, value in context.invocation_metadata() or ()}
