"""The gateway's gRPC service: Join, relayed Connect, relayed calls of Unity games, and health.

One event loop; transactions run on a few threads, so that no slow commit delays a relayed stream. Messages
are taken as bytes: Join is parsed here, so that garbage gets an answer, and Connect is not parsed at all.
"""

import asyncio
import functools
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from ludus.games.unity.messages import GOODBYE
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.contract import CallRefused, read_join, read_report
from ludus.protocol.options import (
    BROKEN,
    CLOSE_METADATA,
    COLLECTOR_SERVICE,
    EXCHANGE,
    MAX_MESSAGE_BYTES,
    REASON_METADATA,
    TICKET_METADATA,
    WAITS_METADATA,
)
from ludus.protocol.tickets import TicketClaims, sign
from ludus.schemas.tokens import Scope
from ludus.websocket import WebSocketCall, WebSocketServer
from server.access.checker import TokenChecker, watch_credentials
from server.gateway.errors import (
    CollectorLost,
    NoBridge,
    RunForbidden,
    RunNameAmbiguous,
    TokenNotForSimulators,
    TokenRefused,
    TooManyFailures,
    abort,
)
from server.gateway.relay import COLLECT, CollectorLine, Context, Relay, going_away, read_ticket
from server.gateway.waiting import Question, WaitingJoins
from server.kit.db.projects import EVERY
from server.kit.db.texts import JsonObject
from server.kit.errors import LudusError
from server.kit.errors import TokenRefused as Refused
from server.kit.listening import GatewaySettings
from server.kit.principal import ANONYMOUS, Principal, everything
from server.kit.rates import Rate
from server.kit.telemetry import GatewayTelemetry
from server.kit.token_watcher import TokenWatcher, WatchedRequest, on_loop
from server.kit.tracing import Tracer
from server.simulators.repository import Assigned, JoinAnswer, NotReady, Placement

_log = structlog.get_logger(__name__)


MEMORY_SECONDS = 10.0
"""Time for which an assignment counts before the database must list the simulator as connected."""


class Balancer:
    """Chooses a collector for each simulator: the least loaded, the same one for the same session id.

    Remembers its last choices, because a hundred simulators may join before the first of them is seen connected.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._choices: dict[tuple[str, int], dict[str, tuple[int, float]]] = {}
        """(run, attempt number) -> session id -> index of the collector, and when it was chosen; the oldest first."""

    def choose(self, assigned: Assigned, session_id: str) -> JsonObject:
        """Return the endpoint of a collector of the attempt."""
        now = self._clock()
        for attempt, choices in list(self._choices.items()):
            while choices and now - choices[oldest := next(iter(choices))][1] >= MEMORY_SECONDS:
                del choices[oldest]
            if not choices:
                del self._choices[attempt]
        recent = self._choices.setdefault((assigned.run_id, assigned.attempt), {})
        endpoints = {int(endpoint["index"]): endpoint for endpoint in assigned.endpoints}
        choice = recent.get(session_id)
        if choice is None or choice[0] not in endpoints:
            promised = Counter(index for index, _ in recent.values())
            least = min(sorted(endpoints), key=lambda index: assigned.load.get(index, 0) + promised[index])
            choice = recent[session_id] = (least, now)
        return endpoints[choice[0]]


SERVING: Final = b"\x08\x01"
"""HealthCheckResponse{status: SERVING}."""
NOT_SERVING: Final = b"\x08\x02"
SERVICE_UNKNOWN: Final = b"\x08\x03"


class Health:
    """The standard health service, `grpc.health.v1.Health`: answers for the whole server ("") and for one service.

    Its two messages have one field each, so they are written out here instead of bringing in another package.
    """

    def __init__(self, service: str) -> None:
        name = service.encode()
        self._known = {b"", b"\x0a\x00", b"\x0a" + bytes([len(name)]) + name}
        """Encoded HealthCheckRequests that name us: field 1, a string."""
        self._stopping = asyncio.Event()

    def handler(self) -> Any:
        """Return the handler of Check and Watch."""
        methods: Any = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    def stop(self) -> None:
        """Answer NOT_SERVING from now on."""
        self._stopping.set()

    async def _check(self, request: bytes, context: Any) -> bytes:
        if request not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is served here")
        return NOT_SERVING if self._stopping.is_set() else SERVING

    async def _watch(self, request: bytes, context: Any) -> None:
        if request not in self._known:
            await context.write(SERVICE_UNKNOWN)
        elif not self._stopping.is_set():
            await context.write(SERVING)
        await self._stopping.wait()
        if request in self._known:
            await context.write(NOT_SERVING)


IDLE_SECONDS: Final = 600.0
"""A channel without a call for this long is closed; the next call then needs a ticket that has not expired."""
OURS: Final = "ludus-"
"""Prefix of the metadata that are passed on."""

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass
class _Line:
    """The channel of one session id."""

    ticket: str
    owner: tuple[str, str]
    """Run and session id."""
    endpoint: str
    channel: grpc.aio.Channel
    watch: ExitStack
    watched: WatchedRequest
    """Valid as long as the token that the bridge joined with."""
    reached: bool = False
    calls: set[Any] = field(default_factory=set)
    """Open calls: one, unless the bridge breaks the contract."""
    expiry: asyncio.TimerHandle | None = None


class CallRelay:
    """Forwards the calls of Unity games' bridges to collectors, byte for byte.

    ML-Agents' protocol has one unary call for everything, so there is no stream to forward: a channel is kept for each
    session id instead, found by the ticket that each of its calls repeats. A ticket is checked when its channel is
    opened; later calls belong to a session that is open already, which a ticket's expiry does not end. The end of the
    token does that the bridge joined with.
    """

    def __init__(self, ticket_key: bytes, line: CollectorLine, watcher: TokenWatcher) -> None:
        self._key = ticket_key
        self._watcher = watcher
        self._collectors = line
        self._lines: dict[str, _Line] = {}
        """By ticket."""
        self._owners: dict[tuple[str, str], _Line] = {}
        self._closing = False
        self._closings: set[asyncio.Future[None]] = set()
        """Channels that are being closed; the event loop holds only weak references to these tasks."""

    @property
    def lines(self) -> int:
        """Number of open channels."""
        return len(self._lines)

    async def forward(self, request: bytes, context: Context) -> bytes:
        """Forward one call, with what the collector answers.

        Raises LudusError if it can't be forwarded: TokenRefused whenever the token of its bridge holds no longer.
        """
        metadata = _ours(context.invocation_metadata())
        ticket = str(dict(metadata).get(TICKET_METADATA, ""))
        if not ticket:
            raise NoBridge
        line = self._lines.get(ticket) or self._open(ticket)
        if line.expiry is not None:
            line.expiry.cancel()
        try:
            if line.watched.refusal is not None:
                raise line.watched.refusal
            if not line.reached:
                await self._collectors.reach(line.channel, line.endpoint)
                line.reached = True
            return await self._call(line, request, metadata, context)
        finally:
            self._rest(line)

    def close(self) -> None:
        """Tell every bridge with an open call to join again."""
        self._closing = True
        for line in self._lines.values():
            for call in line.calls:
                call.cancel()

    async def _call(self, line: _Line, request: bytes, metadata: Metadata, context: Context) -> bytes:
        exchange: Any = line.channel.unary_unary
        # Without serializers gRPC passes the bytes on unparsed.
        call = exchange(EXCHANGE)(request, metadata=metadata)
        line.calls.add(call)
        try:
            reply: bytes = await call
            context.set_trailing_metadata(_ours(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            metadata = _ours(error.trailing_metadata())
            if error.code().name in BROKEN:
                line.reached = False
                if REASON_METADATA not in dict(metadata):
                    raise CollectorLost(line.endpoint) from None
            await context.abort(error.code(), error.details() or "", metadata)
        except asyncio.CancelledError:
            if line.watched.refusal is not None:
                raise line.watched.refusal from None
            if not self._closing:
                raise
            context.set_trailing_metadata(((CLOSE_METADATA, going_away().SerializeToString()),))
            return GOODBYE
        finally:
            line.calls.discard(call)
        return reply

    def _open(self, ticket: str) -> _Line:
        """Open the channel that a ticket leads to, in place of an earlier one of the same session id."""
        claims = read_ticket(self._key, ticket)
        owner = (claims.run_id, claims.session_id)
        if (earlier := self._owners.get(owner)) is not None:
            self._give_up(earlier)
        watch = ExitStack()
        watched = watch.enter_context(self._watcher.watch(claims.token_id, on_loop(lambda: self._end(line))))
        line = _Line(ticket, owner, claims.endpoint, self._collectors.channel(claims.endpoint), watch, watched)
        self._lines[ticket] = self._owners[owner] = line
        return line

    def _end(self, line: _Line) -> None:
        """Cancel the calls of a bridge whose token is not valid any more, and close its channel."""
        for call in line.calls:
            call.cancel()
        self._rest(line)

    def _rest(self, line: _Line) -> None:
        """Close a channel some time after its last call, or at once if one of its ends is closed or refused."""
        if line.calls or self._lines.get(line.ticket) is not line:
            return
        if not line.reached or line.watched.refusal is not None:
            self._give_up(line)
        else:
            line.expiry = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._give_up, line)

    def _give_up(self, line: _Line) -> None:
        if line.expiry is not None:
            line.expiry.cancel()
        line.watch.close()
        del self._lines[line.ticket]
        del self._owners[line.owner]
        closing = asyncio.ensure_future(line.channel.close(None))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)


def _ours(metadata: Any) -> Metadata:
    return tuple((str(key), value) for key, value in metadata or () if str(key).startswith(OURS))


SERVICE: Final = "ludus.v1.SimulationService"
RETRY_SECONDS: Final = 0.5
"""When a simulator whose run is not ready asks again, if its question may not be held: at first, then less often."""
AGAIN_SECONDS: Final = 0.2
"""The same for one whose question was held, at most: it is held again."""
PLACEMENT_THREADS: Final = 8
REPORTS_PER_MINUTE: Final = 30
"""Of one run."""
FAILURES_PER_MINUTE: Final = 20
"""Failed authentications of one address, after which further ones are answered so."""

_held_until: ContextVar[float] = ContextVar("held_until", default=0.0)
"""Until when the present call was held, on the monotonic clock: its answer is measured from then on."""
INTERNAL_ERROR: Final = ((REASON_METADATA, "internal_error"),)


class Gateway:
    """The methods that the server's handlers call."""

    def __init__(
        self,
        settings: GatewaySettings,
        placement: Placement,
        telemetry: GatewayTelemetry | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self.telemetry = telemetry or GatewayTelemetry()
        self._settings = settings
        self._placement = placement
        self._threads = ThreadPoolExecutor(PLACEMENT_THREADS, thread_name_prefix="placement")
        self._tokens = TokenChecker(placement.database, settings.token.get_secret_value() if settings.token else None)
        self._failures = Rate(FAILURES_PER_MINUTE)
        self._suspects = asyncio.Lock()
        self._tls = settings.tls is not None
        # Without a configured key collectors take any ticket; it still routes streams that this gateway relays.
        self._key = settings.ticket_key.get_secret_value().encode() if settings.ticket_key else secrets.token_bytes(32)
        self._balancer = Balancer()
        line = CollectorLine.of(settings)
        self.watcher = watch_credentials(placement.database)
        self.relay = Relay(self._key, line, self.watcher)
        self.telemetry.relayed.set_function(lambda: self.relay.streams)
        self.calls = CallRelay(self._key, line, self.watcher)
        self._reports = Rate(REPORTS_PER_MINUTE)
        self._waiting = WaitingJoins(placement.progress)
        self.telemetry.held.set_function(lambda: self._waiting.held)
        self.health = Health(SERVICE)
        self.websockets = WebSocketServer(MAX_MESSAGE_BYTES, settings.origins, settings.tls)
        self.websocket_port: int | None = None

    def handlers(self) -> list[Any]:
        """Everything that the server answers: first what it answers over WebSockets, too."""
        methods: Any = {
            "Join": grpc.unary_unary_rpc_method_handler(functools.partial(self._place, edge=False)),
            "Report": grpc.unary_unary_rpc_method_handler(self._report),
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
        }
        collectors: Any = {
            "Join": grpc.unary_unary_rpc_method_handler(functools.partial(self._place, edge=True)),
            "Collect": grpc.stream_stream_rpc_method_handler(self._collect),
        }
        unity, _, method = EXCHANGE[1:].partition("/")
        calls: Any = {method: grpc.unary_unary_rpc_method_handler(self._exchange)}
        return [
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(COLLECTOR_SERVICE.strip("/"), collectors),
            grpc.method_handlers_generic_handler(unity, calls),
            self.health.handler(),
        ]

    def close(self) -> None:
        """Stop: tell relayed and waiting simulators and the health service."""
        self._waiting.close()
        self.health.stop()
        self.relay.close()
        self.calls.close()

    def release(self) -> None:
        """End the threads, once no call is under way."""
        self.watcher.close()
        self._threads.shutdown(wait=False)

    async def _place(self, request: bytes, context: Context, *, edge: bool) -> bytes:
        """Place a simulator, or an edge collector."""

        async def join(principal: Principal) -> bytes:
            parsed = read_join(request)
            structlog.contextvars.bind_contextvars(run=parsed.run, session_id=parsed.session_id)
            response = await self._assign(parsed, principal, context, edge=edge)
            return response.SerializeToString()

        return await self._answer("join_collector" if edge else "join", join, context)

    async def _report(self, request: bytes, context: Context) -> bytes:
        async def report(principal: Principal) -> bytes:
            parsed = read_report(request)
            structlog.contextvars.bind_contextvars(run=parsed.run, session_id=parsed.session_id)
            loop = asyncio.get_running_loop()
            run = await loop.run_in_executor(self._threads, self._admit, parsed.run, principal)
            # Counted by the run's id: reports of other projects for a run of the same name do not count.
            if self._reports.count(run) is not None:
                _log.warning("report_dropped", run=parsed.run, code=parsed.code)
            else:
                facts = (run, parsed.session_id, parsed.code, parsed.sentence)
                await loop.run_in_executor(self._threads, self._placement.report, *facts)
            return pb.ReportResponse().SerializeToString()

        return await self._answer("report", report, context)

    async def _answer(self, call: str, answer: Callable[[Principal], Awaitable[bytes]], context: Context) -> bytes:
        """Answer a unary call with a valid token; errors become a named status."""
        began, outcome = time.monotonic(), "internal"
        try:
            answered = await answer(await self._authenticate(context))
            outcome = "ok"
            return answered  # noqa: TRY300  the outcome counts the answer
        except (LudusError, CallRefused) as error:
            outcome = error.code
            await abort(context, error)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:  # noqa: BLE001  the edge of the process: a defect is logged, and the simulator tries again
            _log.exception("call_failed", peer=context.peer())
            await context.abort(
                grpc.StatusCode.INTERNAL, "The gateway made a mistake; its log has the details.", INTERNAL_ERROR
            )
        finally:
            self.telemetry.calls.labels(call, outcome).observe(time.monotonic() - max(began, _held_until.get()))
        raise AssertionError("abort raises")

    async def _connect(self, _: Any, context: Context) -> None:
        try:
            await self.relay.forward(context)
        except LudusError as error:
            await abort(context, error)

    async def _collect(self, _: Any, context: Context) -> None:
        try:
            await self.relay.forward(context, COLLECT)
        except LudusError as error:
            await abort(context, error)

    async def _exchange(self, request: bytes, context: Context) -> bytes:
        try:
            return await self.calls.forward(request, context)
        except LudusError as error:
            await abort(context, error)

    async def _authenticate(self, context: Context) -> Principal:
        """Return who calls. Raises TokenRefused, TooManyFailures, TokenNotForSimulators."""
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        authorization = str(metadata.get("authorization", ""))
        principal = await self._principal(authorization, str(context.peer()).rpartition(":")[0])
        if not principal.may(Scope.SIMULATE):
            raise TokenNotForSimulators
        return principal

    async def _principal(self, given: str, address: str) -> Principal:
        scheme, _, token = given.partition(" ")
        remembered = self._tokens.recall(token) if scheme == "Bearer" else None
        if remembered is not None:
            return remembered
        if not given and not self._settings.demands_token:
            return everything(ANONYMOUS)
        check = functools.partial(self._tokens.check, token if scheme == "Bearer" else "")
        # A right token is accepted whatever others of its address have tried; a flood of wrong ones waits in one line.
        turn: AbstractAsyncContextManager[None] = self._suspects
        if self._failures.exhausted(address) is None:
            turn = nullcontext()
        try:
            async with turn:
                return await asyncio.get_running_loop().run_in_executor(self._threads, check)
        except Refused as refusal:
            if refusal.reason == "unknown" and not self._settings.demands_token:
                return everything(ANONYMOUS)  # a token of another server
            wait = self._failures.count(address)
            if wait is not None:
                raise TooManyFailures(FAILURES_PER_MINUTE, wait) from None
            raise TokenRefused(given=bool(given)) if refusal.reason == "unknown" else refusal from None

    def _admit(self, run: str, principal: Principal) -> str:
        """Return the name by which placement finds a run; with a bound token its id. Reads the database.

        Raises RunNotFound, RunForbidden, RunNameAmbiguous. The newest run of all projects would be the wrong one as
        soon as another project uses the same name.
        """
        if principal.project == EVERY and principal.run_id is None:
            projects = self._placement.projects_of(run)
            if len(projects) > 1:
                raise RunNameAmbiguous(run, projects)
            return run
        answer = self._placement.find(run, None if principal.project == EVERY else principal.project)
        if principal.run_id not in {None, answer}:
            raise RunForbidden(run)
        return answer

    async def _assign(
        self, request: pb.JoinRequest, principal: Principal, context: Context, *, edge: bool
    ) -> pb.JoinResponse:
        # Not in the thread below, which goes on after a call whose simulator gave up: gRPC's core ends the process when
        # somebody asks for the peer of such a call.
        peer = str(context.peer())

        def join() -> JoinAnswer:
            run = self._admit(request.run, principal)
            if edge:
                return self._placement.place_collector(run)
            return self._placement.join(
                run, request.session_id, request.label, request.client, peer, relay=request.relay
            )

        began = time.time()
        loop = asyncio.get_running_loop()
        may_hold = request.max_wait_seconds > 0
        # Thousands of simulators wait for a few runs, and ask again every half minute. One of a run asks the database.
        question = Question(request.run, principal, edge)
        answer: JoinAnswer | None = self._waiting.recall(question) if may_hold else None
        if answer is None:
            answer = await loop.run_in_executor(self._threads, join)
            if isinstance(answer, NotReady):
                self._waiting.learn(question, answer)
        if isinstance(answer, NotReady) and may_hold and self._waiting.held >= self._settings.held_joins:
            # It asks about as often as one whose question is held; all of them come back at different times.
            self.telemetry.not_held.inc()
            retry_seconds = self._settings.hold_seconds * _jitter(0.5)
        elif isinstance(answer, NotReady) and may_hold:
            # Simulators that begin to wait together do not ask again together.
            longest = min(request.max_wait_seconds, self._settings.hold_seconds) * _jitter(0.75)
            with self._waiting.enter(answer.run_id, edge=edge) as waiting:
                # The sentence goes ahead, so that people read it while the call is held.
                await context.send_initial_metadata(((WAITS_METADATA, answer.reason.encode()),))
                while isinstance(answer, NotReady):
                    try:
                        moved = await waiting.ready(longest)
                    finally:
                        _held_until.set(time.monotonic())
                    if not moved:
                        break
                    principal = await self._authenticate(context)  # a token may have been revoked meanwhile
                    began = time.time()  # the time before belongs to the run's queue
                    answer = await loop.run_in_executor(self._threads, join)
            retry_seconds = AGAIN_SECONDS * _jitter(0.5)
        elif isinstance(answer, NotReady):
            retry_seconds = max(RETRY_SECONDS, self._waiting.pause(answer.run_id) / _jitter(0.8))
        match answer:
            case NotReady(_, reason):
                return pb.JoinResponse(wait=pb.Wait(reason=reason, retry_after_seconds=retry_seconds))
            case Assigned() as assigned:
                self._waiting.serve(assigned.run_id)
                if self._tracer is not None:
                    name = "join of a collector" if edge else "join"
                    self._tracer.of_run(
                        assigned.run_id,
                        name,
                        began,
                        attempt=assigned.attempt,
                        attributes={"ludus.session.id": request.session_id, "ludus.simulator.number": assigned.number},
                    )
                collector = self._balancer.choose(assigned, request.session_id)
                endpoint = str(collector["address"])
                if isinstance(context, WebSocketCall) and not request.relay:
                    request.relay = (websocket := collector.get("websocket")) is None
                    endpoint = endpoint if websocket is None else str(websocket)
                    if request.relay:  # which the list of simulators says
                        await loop.run_in_executor(self._threads, join)
                claims = TicketClaims(
                    run_id=assigned.run_id,
                    attempt=assigned.attempt,
                    session_id=request.session_id,
                    number=assigned.number,
                    expires_at=time.time() + self._settings.ticket_seconds,
                    endpoint=endpoint,
                    token_id=principal.token_id,
                    generation=collector.get("generation"),
                )
                return pb.JoinResponse(assignment=self._assignment(claims, edge=edge, relay=request.relay))

    def _assignment(self, claims: TicketClaims, *, edge: bool, relay: bool) -> pb.Assignment:
        _log.info(
            "collector_assigned" if edge else "simulator_assigned",
            run_id=claims.run_id,
            attempt=claims.attempt,
            session_id=claims.session_id,
            number=claims.number,
            endpoint=claims.endpoint,
            relay=relay,
        )
        return pb.Assignment(
            address="" if relay else claims.endpoint,
            ticket=sign(self._key, claims),
            ticket_valid_seconds=self._settings.ticket_seconds,
            relay=relay,
            tls=self._tls,
            simulator_number=claims.number,
            run_id=claims.run_id,
        )


def _jitter(least: float) -> float:
    """Return a random factor, from `least` to 1."""
    return random.uniform(least, 1.0)  # noqa: S311  not used for secrets
