"""The edge collector: a collector beside the games, which acts there and sends finished segments to the run.

It joins a run, serves the games of this machine, and outlives the attempts that it works for. The server that games
dial is this object's. Everything else (`CollectorServer`, with its sessions and policies) belongs to one session with
one attempt, and is made anew for the next: while there is none, games are told to wait.
"""

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from threadpoolctl import threadpool_limits

from ludus.collector import commands
from ludus.collector.carriers.frames import BadFrame
from ludus.collector.carriers.local import LocalConnection
from ludus.collector.carriers.neighbor import choose_carrier
from ludus.collector.carriers.stream import EdgeConnection, StreamEnded
from ludus.collector.messages import EDGE_VERSION, Failed, Introduction, Listening, read
from ludus.collector.policy import PolicyFactory
from ludus.collector.server import CollectorServer
from ludus.collector.service import METHOD, SimulationHandler, join_handler, make_server, relayed
from ludus.collector.snapshots.state import unpack
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.collector.unity.encoding import CLOSING_REPLY
from ludus.collector.unity.service import LocalCall, UnityHandler
from ludus.http2.calls import StreamCall, UnaryCall
from ludus.http2.frames import Metadata
from ludus.http2.server import Http2Server
from ludus.play.checks.first_steps import FirstSteps
from ludus.plugins import PluginError
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.protocol.contract import CallRefused
from ludus.protocol.options import (
    CLOSE_METADATA,
    COLLECTOR_SERVICE,
    EXCHANGE,
    MAX_MESSAGE_BYTES,
    SERVICE,
    TICKET_METADATA,
)
from ludus.sdk.errors import CannotConnect, Failure, SessionRefused
from ludus.sdk.join import END_OF_STATE, CollectorEndpoint, JoinClient, Report, RunEnd, Target, client_name

log = structlog.get_logger()

CLIENT: Final = "ludus-collect"
SETTINGS_SECONDS: Final = 30.0
"""How long an attempt may take to send the settings."""
CLOSE_SECONDS: Final = 2.0
"""How long the games' sessions and the last frames of a session with an attempt may take."""
RETRY_SECONDS: Final = 0.5
"""When a game that waits for the run asks again."""
_AWAY: Final = commands.CloseAll(CloseCode.COLLECTOR_CLOSING, "the collector has no run now; join again", rejoin=True)
AWAY: Final = "the collector of this machine is connecting to the run"


class EdgeCollector:
    """An edge collector of one run."""

    def __init__(
        self,
        target: Target,
        policies: PolicyFactory,
        report: Report,
        *,
        shares_memory: bool = False,
        observes: bool = True,
    ) -> None:
        """`report` takes sentences for people; those on the games' first steps, too, if it `observes` them.

        `shares_memory`: whether it works in the learner's memory instead of a stream where it is on the same host.
        """
        self.sessions = 0
        """Sessions with attempts so far."""
        self.address = ""
        """`host:port` that simulators of this machine dial, once there is one; they need no token."""
        self._target = target
        self._policies = policies
        self._report = report
        self._first_steps = FirstSteps(report) if observes else None
        self._shares_memory = shares_memory
        self._door = _Door(self)
        self._server: grpc.aio.Server | Http2Server | None = None
        self._away = AWAY
        """Why games wait."""
        self._serving = False
        """Whether there is an attempt that new games can play for."""
        self._client: JoinClient | None = None
        self.end: RunEnd | None = None
        """How the run ended, once it has."""

    @property
    def waits_because(self) -> str | None:
        """Why games have to wait; None while they are served."""
        return None if self._serving else self._away

    @property
    def run_id(self) -> str:
        """The run's id, once it is known; until then its name."""
        return self._target.run if self._client is None else self._client.run_id

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Open the port that simulators of this machine dial; return it. Raises OSError if it is taken."""
        server = make_server(MAX_MESSAGE_BYTES, host)
        server.add_generic_rpc_handlers((self._door,))
        try:
            bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"can't listen on {host}, port {port} ({error}); choose another port") from None
        await server.start()
        self._server = server
        self.address = f"{host}:{bound}"
        return int(bound)

    async def run(self) -> RunEnd:
        """Collect until the run ends, for one attempt after the other. Games that call later are told the end.

        Raises CannotConnect where joining is pointless or takes too long, SessionRefused where the attempt says so.
        """
        # The products of a policy are small: more threads cost more than they bring.
        with threadpool_limits(1, "blas"):
            return await self._run()

    async def _run(self) -> RunEnd:
        async with JoinClient(self._target, self._report, client_name(CLIENT), COLLECTOR_SERVICE) as client:
            self._client = client
            client.warn()
            while self.end is None:
                outcome = await self._found(client)
                if isinstance(outcome, CollectorEndpoint):
                    async with outcome as endpoint:
                        outcome = await self._work_for(client, endpoint)
                if isinstance(outcome, RunEnd):
                    self.end = outcome
                else:
                    self._away = f"the run went away ({outcome.sentence}); its next attempt goes on"
                    await client.back_off(outcome)
        return self.end

    async def _found(self, client: JoinClient) -> CollectorEndpoint | RunEnd | Failure:
        """Return the run's attempt, or its end. Raises CannotConnect.

        Games that play are worth a wait: where one attempt's worker takes no edge collectors, that of the next may.
        """
        try:
            return await client.find()
        except CannotConnect as error:
            if error.code != "places_unavailable" or not self.sessions:
                raise
            return Failure(error.code, str(error), permanent=False)

    async def close(self) -> None:
        """Close the port that games dial."""
        if self._server is not None:
            await self._server.stop(CLOSE_SECONDS)

    async def exchange(self, message: bytes, metadata: Metadata) -> tuple[bytes, Mapping[str, Any]]:
        """Answer one call of a Unity game of this process; return the reply and its trailing metadata.

        While the run is away, the reply ends the session, and asks to join again.
        """
        players, call = self._door.players, LocalCall(metadata)
        if players is None:
            close = pb.Close(code=CloseCode.COLLECTOR_CLOSING, reason=self._away, rejoin=True)
            if self.end is not None:
                close = pb.Close(code=self.end.code, reason=self.end.reason, rejoin=False)
            return CLOSING_REPLY, {CLOSE_METADATA: close.SerializeToString()}
        return await players.exchange(message, call), call.trailing

    async def report_problem(self, request: pb.ReportRequest) -> None:
        """Pass on what a game's machine reports."""
        if self._client is not None:
            await self._client.report(request.session_id, Failure(request.code, request.sentence, permanent=False))

    async def _work_for(self, client: JoinClient, endpoint: CollectorEndpoint) -> RunEnd | Failure:
        """Collect for one attempt. Raises SessionRefused."""
        stream: Any = endpoint.channel.stream_stream
        metadata = ((TICKET_METADATA, endpoint.assignment.ticket),)
        async with EdgeConnection(stream(f"{COLLECTOR_SERVICE}Collect")(metadata=metadata)) as connection:
            connection.tell(Introduction(EDGE_VERSION, self._target.session_id, platform.node()))
            try:
                async with asyncio.timeout(SETTINGS_SECONDS):
                    start = read(first := await connection.first_frame())
                    assert isinstance(start, commands.Settings), "an attempt sends the settings first"
                    restored = unpack((await connection.first_frame()).payload) if start.restored else None
                    offers = first.contents if self._shares_memory else ()
                    link = await choose_carrier(connection, offers, self._report)
            except TimeoutError:
                return Failure("timeout", f"{endpoint.address} sent no settings in time", permanent=False)
            except StreamEnded:
                return _failure(endpoint, connection)
            endpoint.welcomed()
            try:
                collector = CollectorServer(link, self._policies, start, restored)
                collector.host.observe = self._first_steps
                connection.congested = collector.hold_for_network
                slow = "the network is slower than the games: they wait until it has caught up"
                connection.lagging = lambda: self._report(logging.WARNING, slow)
                collector.link.tell(Listening(0))
                collector.listen()
                self.sessions += 1
                again = "" if self.sessions == 1 else " again"
                shared = ", in the memory of its worker" if isinstance(link, LocalConnection) else ""
                self._report(
                    logging.INFO,
                    f"collecting for run {client.run_id}, attempt {collector.host.settings.attempt}{again}{shared}",
                )
                closed = await self._serve(collector)
            finally:
                if isinstance(link, LocalConnection):
                    link.close()
            if closed is None:
                return _failure(endpoint, connection)
            return client.interpret_close(pb.Close(code=closed.code, reason=closed.reason, rejoin=closed.rejoin))

    async def _serve(self, collector: CollectorServer) -> commands.CloseAll | None:
        """Serve games until the attempt ends; return its last message, None if the connection broke."""
        simulators = SimulationHandler(collector.host)
        players = UnityHandler(collector.host, tickets=False)
        self._door.simulators, self._door.players, self._serving = simulators, players, True
        ticking = asyncio.ensure_future(collector.tick_forever())
        try:
            await asyncio.wait([collector.done])
            self._serving = False
            return await self._close(collector, simulators, players)
        finally:
            ticking.cancel()
            self._serving = False
            if not collector.done.done():  # this process is to end
                collector.close_sessions(_AWAY)
            self._door.simulators = self._door.players = None

    async def _close(
        self,
        collector: CollectorServer,
        simulators: SimulationHandler,
        players: UnityHandler,
    ) -> commands.CloseAll | None:
        """End the games' sessions; return what the attempt has said, None if it is gone. Raises SessionRefused."""
        failure = collector.done.exception()
        if failure is not None:
            collector.link.tell(Failed(str(failure)))
            collector.abandon_sessions()
            await collector.link.finish(CLOSE_SECONDS)
            if isinstance(failure, UnsupportedSpec | PluginError):
                code = failure.code if isinstance(failure, UnsupportedSpec) else "plugin_missing"
                raise SessionRefused(code, f"this collector cannot act for the run: {failure}")
            raise failure
        closed = collector.done.result()
        collector.close_sessions(closed or _AWAY)
        deadline = asyncio.get_running_loop().time() + CLOSE_SECONDS
        while (collector.sessions or simulators.lingering or players.unreported) and (
            asyncio.get_running_loop().time() < deadline
        ):
            await asyncio.sleep(0.005)
        collector.host.recorder.close()
        await asyncio.sleep(0)  # what it has written goes out
        if closed is not None:
            await collector.link.finish(CLOSE_SECONDS)
        return closed


@asynccontextmanager
async def edge_collector(
    target: Target,
    report: Report,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    shares_memory: bool = False,
    observes: bool = True,
) -> AsyncIterator[EdgeCollector]:
    """Listen for simulators of this machine during the block, which calls `EdgeCollector.run`.

    Raises CannotConnect(port_taken).
    """
    edge = EdgeCollector(target, PolicyFactory(), report, shares_memory=shares_memory, observes=observes)
    try:
        await edge.listen(host, port)
    except OSError as error:
        raise CannotConnect("port_taken", str(error)) from None
    try:
        yield edge
    finally:
        await edge.close()


class _Door(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Handles the calls of games: passes them to the present collector, or tells the games to wait."""

    def __init__(self, edge: EdgeCollector) -> None:
        self.simulators: SimulationHandler | None = None
        self.players: UnityHandler | None = None
        self._edge = edge
        self._handlers: dict[str, Any] = {
            f"{SERVICE}Join": join_handler(self._join),
            f"{SERVICE}Report": grpc.unary_unary_rpc_method_handler(
                self._report,
                request_deserializer=pb.ReportRequest.FromString,
                response_serializer=pb.ReportResponse.SerializeToString,
            ),
        }
        self._closing = grpc.stream_stream_rpc_method_handler(self._send_away)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method."""
        method = handler_call_details.method
        if method == METHOD:
            return self._closing if self.simulators is None else self.simulators.service(handler_call_details)
        if method == EXCHANGE:
            return None if self.players is None else self.players.service(handler_call_details)
        return self._handlers.get(method)

    def _join(self) -> pb.JoinResponse:
        """Answer a game that asks to join. Raises CallRefused once the run has ended."""
        end, reason = self._edge.end, self._edge.waits_because
        if end is not None:
            (state,) = (state for state, code in END_OF_STATE.items() if code is end.code)
            raise CallRefused("run_ended", end.reason, state)
        if reason is not None:
            return pb.JoinResponse(wait=pb.Wait(reason=reason, retry_after_seconds=RETRY_SECONDS))
        return relayed(self._edge.run_id)

    async def _report(self, request: pb.ReportRequest, _: UnaryCall) -> pb.ReportResponse:
        await self._edge.report_problem(request)
        return pb.ReportResponse()

    async def _send_away(self, _: None, context: StreamCall) -> None:
        close = pb.Close(code=CloseCode.COLLECTOR_CLOSING, reason=AWAY, rejoin=True)
        await context.write(pb.ConnectResponse(close=close).SerializeToString())


def _failure(endpoint: CollectorEndpoint, connection: EdgeConnection) -> Failure:
    """Return why the stream to an attempt ended."""
    if isinstance(connection.error, grpc.aio.AioRpcError):
        return endpoint.explain(connection.error)
    if isinstance(connection.error, BadFrame):
        return Failure("bad_frame", f"{endpoint.address} sent what is no frame: {connection.error}", permanent=False)
    return Failure("disconnected", f"{endpoint.address} ended the stream", permanent=False)
