"""Forwards the calls of Unity games' bridges to collectors, byte for byte.

ML-Agents' protocol has one unary call for everything, so there is no stream to forward: a channel is kept for each
session id instead, found by the ticket that each of its calls repeats. A ticket is checked when its channel is opened;
later calls belong to a session that is open already, which a ticket's expiry does not end. The end of the token does
that the bridge joined with.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from ludus.games.unity.messages import GOODBYE
from ludus.protocol.options import BROKEN, CLOSE_METADATA, EXCHANGE, REASON_METADATA, TICKET_METADATA
from server.gateway.errors import CollectorLost, NoBridge
from server.gateway.relay import CollectorLine, Context, going_away, read_ticket
from server.kit.token_watcher import TokenWatcher, WatchedRequest
from server.kit.waking import on_loop

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
    """The calls that this gateway forwards."""

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
