"""A server for testing clients: gateway and collector of `ludus.v1` in one; it checks messages and trains nothing.

It answers with random valid actions, and on demand does the same as runs: reset simulators, make them wait, end, break
off. It prints each message in words, and each violation with its code.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import PROTOCOL_VERSION
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import MAX_JOIN_BYTES, join_problem, report_problem
from ludus.protocol.options import (
    MAX_MESSAGE_BYTES,
    REASON_METADATA,
    SERVICE,
    STATE_METADATA,
    TICKET_METADATA,
    server_options,
)
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.contract.fake_stream import BREAKS, FakeStream, metadata_of
from ludus.sdk.contract.served_stream import RUN_ID

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
    """One of `ENDINGS`."""
    reset_every: int | None = None
    """Answer every n-th step with a Reset."""
    save_every: int | None = None
    """Send Save before the answer to every n-th step to simulators that can go back."""
    delay_seconds: float = 0.0
    """Delay of each answer."""
    split: bool = False
    """Answer the agents of a step one by one, the last one first."""
    future: bool = False
    """Send a message that no client knows before each answer."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Environment parameters; each Reset adds 1 to them, so that they differ."""
    script: Sequence[tuple[Sequence[float], Sequence[int]]] = ()
    """Continuous and discrete actions that are taken in turn, in place of random ones."""
    vis_encode_type: str = "simple"
    """The visual encoder of the run's `network_settings`, which says how small pictures may be."""
    seed: int = 0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    step_timeout_seconds: float = 60.0
    tls: grpc.ServerCredentials | None = None


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
        """Prints an event."""
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

    async def _join(self, data: bytes, context: Any) -> bytes:
        await self._authenticate("Join", context)
        if len(data) > MAX_JOIN_BYTES:
            await self._refuse(context, "bad_join", f"the JoinRequest has {len(data)} bytes, at most {MAX_JOIN_BYTES}")
        try:
            request = pb.JoinRequest.FromString(data)
        except DecodeError:
            await self._refuse(context, "bad_join", f"{len(data)} bytes are no JoinRequest")
        joined = f"Join: run {request.run!r}, session id {request.session_id!r}, label {request.label!r}, client "
        self.say(f"{joined}{request.client!r}{', asks for relay' if request.relay else ''}")
        if request.protocol_version != PROTOCOL_VERSION:
            spoken = f"protocol_version is {request.protocol_version}, this server speaks {PROTOCOL_VERSION}"
            await self._refuse(context, "protocol_version", spoken)
        problem = join_problem(request)
        if problem is not None:
            await self._refuse(context, "bad_join", " ".join(problem))
        if self.behaviour.run not in {None, request.run, RUN_ID}:
            await self._refuse(context, "run_not_found", f"there is no run {request.run!r}")
        if self._ended_with:
            sentence = f"the run has ended: {self._ended_with}"
            self.say(f"  refused: run_ended, {STATE_METADATA} {self._ended_with}")
            metadata = ((REASON_METADATA, "run_ended"), (STATE_METADATA, self._ended_with))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence, metadata)
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

    async def _report(self, data: bytes, context: Any) -> bytes:
        await self._authenticate("Report", context)
        try:
            request = pb.ReportRequest.FromString(data)
        except DecodeError:
            await self._refuse(context, "bad_join", f"{len(data)} bytes are no ReportRequest")
        self.say(f"Report: {request.code}: {request.sentence}")
        problem = report_problem(request)
        if problem is not None:
            await self._refuse(context, "bad_join", " ".join(problem))
        return pb.ReportResponse().SerializeToString()

    async def _authenticate(self, call: str, context: Any) -> None:
        given = metadata_of(context).get("authorization")
        if self.behaviour.token is not None and given != f"Bearer {self.behaviour.token}":
            self.say(f"{call}: authorization {given!r}")
            missing = (
                "the metadata authorization is missing" if given is None else "it is not 'Bearer TOKEN' of this server"
            )
            await self._refuse(context, "unauthenticated", missing, grpc.StatusCode.UNAUTHENTICATED)

    async def _refuse(
        self, context: Any, reason: str, sentence: str, status: grpc.StatusCode | None = None
    ) -> NoReturn:
        self.violation(f"{reason}: {sentence}")
        statuses = {
            "run_not_found": grpc.StatusCode.NOT_FOUND,
            "protocol_version": grpc.StatusCode.FAILED_PRECONDITION,
        }
        status = status or statuses.get(reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(status, sentence, ((REASON_METADATA, reason),))
        raise AssertionError("abort raises")

    # Streams ----------------------------------------------------------------------------------------------------

    async def _connect(self, _: AsyncIterator[bytes], context: Any) -> None:
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
            await self._play(stream, name, context)
        finally:
            self.ended += stream.greeted  # also if the client goes during Close

    async def _play(self, stream: FakeStream, name: str, context: Any) -> None:
        """Serve a stream to its end, and say why it ends."""
        try:
            close = await stream.play()
        except ProtocolError as error:
            self.violation(f"{name}: {error.code.value}: {error.message}")
            close = (error.code, error.message)
        if self._live.get(stream.session_id) is stream:
            del self._live[stream.session_id]
        if close is None:
            return
        code, reason = close
        if stream.breaks:
            self.say(f"{name}: broken off without Close; join again")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the fake collector died")
        self.say(f"{name}: closed with {code.value}: {reason}{'; join again' if code.rejoin else ''}")
        message = pb.Close(code=code.value, reason=reason, rejoin=code.rejoin)
        await context.write(pb.ConnectResponse(close=message).SerializeToString())
        await stream.linger()

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

    def end_run(self) -> tuple[CloseCode, str]:
        """Return how the streams end, once one of them has played its steps."""
        code, self._ended_with = ENDINGS[self.behaviour.ending]
        return code, f"the fake run has ended after {self.behaviour.steps} steps ({self.behaviour.ending})"

    def violation(self, sentence: str) -> None:
        """Print and keep a violation of the contract."""
        self.violations.append(sentence)
        self.say(f"VIOLATION: {sentence}")
