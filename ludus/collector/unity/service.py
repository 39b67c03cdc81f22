"""Service: `communicator_objects.UnityToExternalProto/Exchange` for gRPC's clients, as raw bytes.

A bridge names the session of a call in its metadata (`ludus-session-id`). A player that dials in by itself does not,
and its calls are identified by its TCP connection. Several players of one process may share a connection; then only one
of them is replied to at a time, so that the next call can only be that one's (`Line`).
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from uuid import uuid4

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from ludus.collector.session import CONNECTION_LOST, DISCONNECTED, MISTAKE, THIS_MACHINE, Host
from ludus.collector.unity.encoding import CLOSING_REPLY
from ludus.collector.unity.session import OK, UnitySession
from ludus.http2.calls import ExchangeCall
from ludus.http2.frames import Metadata
from ludus.play.recordings.file import Direction
from ludus.protocol import simulation_pb2 as sim
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import MAX_CLIENT, SESSION_ID
from ludus.protocol.mlagents import shallow_pb2 as shallow
from ludus.protocol.options import (
    CLIENT_METADATA,
    CLOSE_METADATA,
    EXCHANGE,
    PARKS_METADATA,
    SESSION_ID_METADATA,
    TICKET_METADATA,
)

log = structlog.get_logger()

GOODBYE_SECONDS = 60.0
"""How long a session that ended between two calls is remembered, so that the next one is answered with the reason."""


class Line:
    """The players that share a connection, and the one whose turn it is."""

    def __init__(self) -> None:
        self.caller: UnitySession | None = None
        """The one that was replied to and has not called: the next call is its own."""
        self._players: set[UnitySession] = set()
        self._waiting: deque[tuple[UnitySession, asyncio.Future[None]]] = deque()

    def join(self, session: UnitySession) -> None:
        """Take a player in."""
        self._players.add(session)
        session.is_in_the_way = lambda: self.caller is session and bool(self._waiting)

    @property
    def shared(self) -> bool:
        """Whether several players come by this connection."""
        return len(self._players) > 1

    @property
    def expected(self) -> UnitySession | None:
        """The player whose call comes next; the only player, even if it is not its turn."""
        if self.caller is None and len(self._players) == 1:
            return next(iter(self._players))
        return self.caller

    def leave(self, session: UnitySession) -> bool:
        """Forget a player; whether it was the last one."""
        self._players.discard(session)
        if self.caller is session:
            self.called()
        return not self._players

    def called(self) -> None:
        """Record that the caller has called: the next reply may go out."""
        self.caller = None
        while self._waiting and self.caller is None:
            session, turn = self._waiting.popleft()
            if not turn.done():
                self.caller = session
                turn.set_result(None)

    async def turn(self, session: UnitySession) -> None:
        """Wait until a player may be replied to."""
        if self.caller is None:
            self.caller = session
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((session, turn))
        await turn


class LocalCall:
    """A call from this process."""

    def __init__(self, metadata: Metadata) -> None:
        self.trailing: Mapping[str, object] = {}
        """Metadata of the reply."""
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        """Return the call's metadata."""
        return self._metadata

    def peer(self) -> str:
        """Return where the call comes from, for people."""
        return THIS_MACHINE

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata of the reply."""
        self.trailing = dict(metadata)


class UnityHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Serves Exchange with sessions of a collector. `tickets`: whether players need one."""

    def __init__(self, host: Host, *, tickets: bool) -> None:
        self._host = host
        self._tickets = tickets
        self._sessions: dict[str, UnitySession] = {}
        """By session id, of players that say theirs."""
        self._lines: dict[str, Line] = {}
        """By TCP peer, of those that don't."""
        self._handler = grpc.unary_unary_rpc_method_handler(self.exchange)
        self.unreported: set[UnitySession] = set()
        """Sessions that ended between two calls; the next one is answered with the reason."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of Exchange."""
        return self._handler if handler_call_details.method == EXCHANGE else None

    async def exchange(self, data: bytes, context: ExchangeCall) -> bytes:
        """Answer one call of a player."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if key.startswith("ludus-")}
        try:
            message = shallow.Message.FromString(data)
        except DecodeError:
            return self._garbage(data, metadata, context)
        if SESSION_ID_METADATA in metadata:
            return await self._named(message, data, metadata, context)
        return await self._unnamed(message, data, metadata, context)

    async def _named(
        self, message: shallow.Message, data: bytes, metadata: Mapping[str, object], context: ExchangeCall
    ) -> bytes:
        session_id = str(metadata[SESSION_ID_METADATA])
        session = self._sessions.get(session_id)
        if _introduces(message) and (session is None or session.number >= 0):
            if SESSION_ID.fullmatch(session_id) is None:
                wanted = "a session id has 1 to 64 characters of 0-9, A-Z, a-z, _ and -"
                return _refused(context, CloseCode.BAD_HELLO, wanted)
            earlier = None if session is None else weakref.ref(session)  # the collector keeps it while it lives
            session = self._sessions[session_id] = self._open(context, session_id, metadata)
            session.on_end = self._when_over(session, lambda: self._forget(session_id, session, earlier), lambda: True)
        if session is None:
            if message.header.status != OK:
                return CLOSING_REPLY  # a bridge also says goodbye where we have noticed that its game has gone
            return _refused(context, CloseCode.UNEXPECTED_MESSAGE, _STRANGER)
        if not session.was_opened_with(_ticket(metadata)):
            return _refused(context, CloseCode.BAD_TICKET, _ANOTHER_TICKET)
        session.peer = context.peer()  # a bridge may have had to connect again
        return await self._reply(session, message, data, context)

    async def _unnamed(
        self, message: shallow.Message, data: bytes, metadata: Mapping[str, object], context: ExchangeCall
    ) -> bytes:
        peer = context.peer()
        line = self._lines.get(peer)
        if _introduces(message):
            if line is None:
                line = self._lines[peer] = Line()
            session = self._open(context, uuid4().hex, metadata)
            line.join(session)
            shared = line
            session.on_end = self._when_over(session, lambda: self._leave(peer, session), lambda: not shared.shared)
        elif line is None or line.expected is None:
            return _refused(context, CloseCode.UNEXPECTED_MESSAGE, _STRANGER)
        else:
            session = line.expected
            line.called()
        reply = await self._reply(session, message, data, context)
        if not session.end_sent:
            session.is_queued = True
            try:
                await line.turn(session)
            except asyncio.CancelledError:
                session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)
                raise
            session.goes_out()
        return reply if session.closed is None else self._goodbye(session, context)

    async def _reply(
        self, session: UnitySession, message: shallow.Message, data: bytes, context: ExchangeCall
    ) -> bytes:
        try:
            reply = await session.call(message, data)
        except asyncio.CancelledError:
            session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)
            raise
        except Exception:  # the edge of a session: a mistake of ours must not take the others down
            log.exception("session_failed", session_id=session.session_id, number=session.number)
            session.end_by(MISTAKE)
            return self._goodbye(session, context)
        return reply if session.closed is None else self._goodbye(session, context)

    def _open(self, context: ExchangeCall, session_id: str, metadata: Mapping[str, object]) -> UnitySession:
        ticket = _ticket(metadata) if self._tickets else None
        client = str(metadata.get(CLIENT_METADATA, ""))[:MAX_CLIENT]
        # A player that dials in by itself may be the Editor, and a bridge says whether it speaks for one.
        tied = SESSION_ID_METADATA not in metadata
        parks = tied or PARKS_METADATA in metadata
        peer = context.peer()
        return UnitySession(self._host, peer, session_id, ticket=ticket, client=client, parks=parks, tied=tied)

    def _when_over(
        self, session: UnitySession, forget: Callable[[], None], may_stay: Callable[[], bool]
    ) -> Callable[[], None]:
        """Return a function for the end of a session: it forgets the session, at once or after its next call.

        One that shares its connection cannot stay for that: the others wait for their turn.
        """

        def over() -> None:
            self._host.listener.ended(session)
            if session.goodbye is None or session.end_sent or not may_stay():
                forget()
            else:
                self.unreported.add(session)
                asyncio.get_running_loop().call_later(GOODBYE_SECONDS, told)
            session.on_end = told

        def told() -> None:
            if session in self.unreported:
                self.unreported.discard(session)
                forget()

        return over

    def _goodbye(self, session: UnitySession, context: ExchangeCall) -> bytes:
        session.on_end()
        if session.goodbye is not None:
            context.set_trailing_metadata(((CLOSE_METADATA, session.goodbye),))
        return CLOSING_REPLY

    def _forget(self, session_id: str, session: UnitySession, earlier: "weakref.ref[UnitySession] | None") -> None:
        """Forget a session; one that it would have replaced, had it been welcomed, goes on."""
        if self._sessions.get(session_id) is not session:
            return
        before = None if earlier is None else earlier()
        if before is None or before.closed is not None:
            del self._sessions[session_id]
        else:
            self._sessions[session_id] = before

    def _leave(self, peer: str, session: UnitySession) -> None:
        line = self._lines.get(peer)
        if line is not None and line.leave(session):
            del self._lines[peer]

    def _garbage(self, data: bytes, metadata: Mapping[str, object], context: ExchangeCall) -> bytes:
        """End the session whose call cannot be read."""
        error = ProtocolError(CloseCode.MALFORMED_MESSAGE, f"a message of {len(data)} bytes is no UnityMessageProto")
        if SESSION_ID_METADATA in metadata:
            session = self._sessions.get(str(metadata[SESSION_ID_METADATA]))
            if session is not None and not session.was_opened_with(_ticket(metadata)):
                session = None
        else:
            line = self._lines.get(context.peer())
            session = None if line is None else line.expected
        if session is None:
            return _refused(context, error.code, error.message)
        session.tape.take(Direction.RECEIVED, data)
        session.tape.take(Direction.SENT, CLOSING_REPLY)
        session.end_by(error)
        return self._goodbye(session, context)


_STRANGER = (
    "a call came from a player that has not introduced itself here: its collector may have been started again, and the "
    "player has to be, too; `ludus unity` saves it from that"
)
_ANOTHER_TICKET = "each call of a bridge repeats the ticket that its session was opened with, and this one does not"


def _ticket(metadata: Mapping[str, object]) -> str:
    return str(metadata.get(TICKET_METADATA, ""))


def _introduces(message: shallow.Message) -> bool:
    """Whether this is the first call of a player. Later ones carry behaviors in the same field, but no version."""
    output = message.unity_output
    if output.rl_initialization_output.communication_version:
        return True
    announces = len(output.rl_initialization_output.brain_parameters) > 0
    return message.HasField("unity_output") and not output.HasField("rl_output") and not announces


def _refused(context: ExchangeCall, code: CloseCode, reason: str) -> bytes:
    """Turn a call away that belongs to no session."""
    log.info("call_refused", code=code.value, reason=reason, peer=context.peer())
    close = sim.Close(code=code.value, reason=reason, rejoin=code.rejoin)
    context.set_trailing_metadata(((CLOSE_METADATA, close.SerializeToString()),))
    return CLOSING_REPLY
