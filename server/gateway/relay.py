"""Forwards Connect streams to collectors, byte for byte.

For simulators that cannot reach a collector's address. The stream is not decoded: the collector is named by the ticket
in the metadata `ludus-ticket`, which the gateway signed itself. When the gateway shuts down it ends relayed streams
with `Close(collector_closing, rejoin)`, the only message of its own. When the token that a simulator joined with is not
valid any more, its stream fails with UNAUTHENTICATED.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import BROKEN, COLLECTOR_SERVICE, REASON_METADATA, TICKET_METADATA, client_options
from ludus.protocol.tickets import TicketClaims, TicketExpired, TicketInvalid, verify
from server.gateway.errors import BadTicket, CollectorLost, CollectorUnreachable, GatewayClosing, OldTicket
from server.kit.listening import GatewaySettings
from server.kit.token_watcher import TokenWatcher, on_loop

CONNECT: Final = "/ludus.v1.SimulationService/Connect"
COLLECT: Final = f"{COLLECTOR_SERVICE}Collect"
REACH_SECONDS: Final = 5.0
"""A collector that does not answer for this long counts as unreachable."""

_EOF: Final[Any] = getattr(grpc.aio, "EOF")  # noqa: B009  the type stubs do not know it
_log = structlog.get_logger(__name__)

Context = Any
"""grpc.aio.ServicerContext, whose type stubs lack `read` and `write` of bytes."""


class Relay:
    """The streams that this gateway forwards."""

    def __init__(self, ticket_key: bytes, line: "CollectorLine", watcher: TokenWatcher) -> None:
        self._key = ticket_key
        self._line = line
        self._watcher = watcher
        self._closing = asyncio.Event()
        self.streams = 0
        """Number of open relays."""

    async def forward(self, context: Context, method: str = CONNECT) -> None:
        """Forward one stream until either side ends it: of a simulator, or of an edge collector.

        Raises LudusError before the first byte, CollectorLost at any time, and TokenRefused whenever the simulator's
        token is not valid any more.
        """
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        ticket = str(metadata.get(TICKET_METADATA, ""))
        if not ticket:
            raise BadTicket(
                f"A stream to the gateway needs the ticket of its assignment as metadata {TICKET_METADATA}."
            )
        claims = read_ticket(self._key, ticket)
        async with self._line.channel(claims.endpoint) as channel:
            await self._line.reach(channel, claims.endpoint)
            # Without serializers gRPC passes the bytes on unparsed.
            connect: Any = channel.stream_stream
            call = connect(method)(metadata=((TICKET_METADATA, ticket),))
            self.streams += 1
            try:
                await self._pump(context, call, claims, method)
            finally:
                self.streams -= 1
                call.cancel()

    def close(self) -> None:
        """Tell every relayed simulator to join again."""
        self._closing.set()

    async def _pump(self, context: Context, call: Any, claims: TicketClaims, method: str) -> None:
        refused = asyncio.Event()
        with self._watcher.watch(claims.token_id, on_loop(refused.set)) as watched:
            upward = asyncio.ensure_future(_upward(context, call))
            downward = asyncio.ensure_future(_downward(context, call))
            ends = [asyncio.ensure_future(event.wait()) for event in (self._closing, refused)]
            try:
                await asyncio.wait({downward, *ends}, return_when=asyncio.FIRST_COMPLETED)
                if downward.done():
                    downward.result()
                elif watched.refusal is not None:
                    raise watched.refusal
                else:
                    await _stop(downward)
                    if method == COLLECT:
                        raise GatewayClosing
                    await context.write(pb.ConnectResponse(close=going_away()).SerializeToString())
                    return
            finally:
                for task in (upward, downward, *ends):
                    await _stop(task)
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            metadata = {str(key): value for key, value in await call.trailing_metadata() or ()}
            reason = metadata.get(REASON_METADATA)
            if code.name in BROKEN and reason is None:
                raise CollectorLost(claims.endpoint)
            await context.abort(code, await call.details(), ((REASON_METADATA, reason),) if reason else ())


def read_ticket(key: bytes, ticket: str) -> TicketClaims:
    """Return the claims of a ticket of this gateway. Raises BadTicket or OldTicket."""
    try:
        claims = verify(key, ticket, time.time())
    except TicketInvalid as error:
        raise BadTicket(str(error)) from None
    except TicketExpired as error:
        raise OldTicket(str(error)) from None
    if not claims.endpoint:
        raise BadTicket("The ticket names no collector. Join again.")
    return claims


@dataclass(frozen=True)
class CollectorLine:
    """The channel to collectors: over TLS if the gateway uses TLS, with its own certificate as the client's."""

    credentials: grpc.ChannelCredentials | None = None
    name: str | None = None
    """That collectors' certificates are for; None: their address."""

    @classmethod
    def of(cls, settings: GatewaySettings) -> "CollectorLine":
        """Read the files that the settings name."""
        if settings.tls is None:
            return cls()
        authority = None if settings.tls_ca is None else settings.tls_ca.read_bytes()
        pair = (settings.tls.key.read_bytes(), settings.tls.certificate.read_bytes())
        return cls(grpc.ssl_channel_credentials(authority, *pair), settings.tls_name)

    def channel(self, endpoint: str) -> grpc.aio.Channel:
        """Return a channel to a collector."""
        options: list[tuple[str, Any]] = [*client_options(endpoint.rpartition(":")[0].strip("[]"))]
        if self.credentials is None:
            return grpc.aio.insecure_channel(endpoint, options)
        if self.name is not None:
            options.append(("grpc.ssl_target_name_override", self.name))
        return grpc.aio.secure_channel(endpoint, self.credentials, options)

    async def reach(self, channel: grpc.aio.Channel, endpoint: str) -> None:
        """Wait until a collector answers. Raises CollectorUnreachable."""
        try:
            await asyncio.wait_for(channel.channel_ready(), REACH_SECONDS)
        except TimeoutError:
            raise CollectorUnreachable(endpoint, tls=self.credentials is not None) from None


async def _upward(context: Context, call: Any) -> None:
    """Simulator to collector. A collector that has ended the stream is noticed by the other direction."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while (message := await context.read()) is not _EOF:
            await call.write(message)
        await call.done_writing()


async def _downward(context: Context, call: Any) -> None:
    """Collector to simulator."""
    with suppress(grpc.aio.AioRpcError):
        while (message := await call.read()) is not _EOF:
            await context.write(message)


async def _stop(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def going_away() -> pb.Close:
    """Return the Close message for a simulator whose relay shuts down."""
    return pb.Close(
        code=CloseCode.COLLECTOR_CLOSING,
        reason="The gateway that relays this simulator is shutting down; join again.",
        rejoin=True,
    )
