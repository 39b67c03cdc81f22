"""The port to which a game connects: it serves gRPC on this machine's loopback, with one session at a time."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import grpc

from ludus.games import diagnostics
from ludus.games.reporter import Tell
from ludus.games.unity.bridge import BridgeSession
from ludus.games.unity.messages import GOODBYE, closes, introduces, outline
from ludus.http2.calls import ExchangeCall
from ludus.http2.server import Http2Server
from ludus.protocol.options import EXCHANGE

STOP_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 0.2

MOST_MESSAGE_BYTES: Final = 2**32 - 1
"""The largest length that gRPC's prefix can hold. The collector checks its own, smaller limit."""


class GamePort:
    """Serves one game after the other."""

    def __init__(self, converse: Callable[[], BridgeSession], tell: Tell, *, exclusive: bool) -> None:
        self.number = 0
        self.session: BridgeSession | None = None
        """The present or last session; None until a game has called."""
        self._new_session = converse
        self._tell = tell
        self._exclusive = exclusive
        """Whether only one process is expected: then a second game that calls during a session is refused."""
        self._server: Http2Server | None = None
        self._peer = ""
        self._earlier_peer = ""

    async def open(self, number: int) -> bool:
        """Listen on a port of 127.0.0.1, and of ::1 where there is one. Returns False if the port is taken."""
        if await asyncio.to_thread(_answers, number):
            return False
        server = Http2Server(MOST_MESSAGE_BYTES)
        service, _, method = EXCHANGE[1:].partition("/")
        handler: Any = grpc.unary_unary_rpc_method_handler(self._exchange)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        try:
            for host in ("127.0.0.1", "[::1]") if _has_ipv6() else ("127.0.0.1",):
                server.add_insecure_port(f"{host}:{number}")
        except RuntimeError:
            await server.stop(None)
            return False
        await server.start()
        self._server, self.number = server, number
        return True

    async def close(self) -> None:
        """Stop serving."""
        await self.end_session()
        if self._server is not None:
            await self._server.stop(STOP_SECONDS)

    async def end_session(self) -> None:
        """End the present session, if there is one."""
        session, self.session = self.session, None
        if session is not None:
            await session.leave()

    async def _exchange(self, request: bytes, context: ExchangeCall) -> bytes:
        """Answer one call of a game."""
        top, peer = outline(request), str(context.peer())
        if introduces(top):
            present = self.session
            taken = present is not None and not present.over and peer != self._peer
            if present is not None and taken and (self._exclusive or present.busy):
                self._tell(diagnostics.failure("foreign_game", port=self.number))
                return GOODBYE
            await self.end_session()
            self._earlier_peer = self._peer if peer != self._peer else ""
            self._peer = peer
            self.session = self._new_session()
        elif self.session is None or peer == self._earlier_peer:
            if not closes(top):
                self._tell(diagnostics.failure("stray_call", port=self.number))
            return GOODBYE
        return await self.session.answer(request, top)


def _answers(number: int) -> bool:
    """Whether something listens on a port. Where several may share one (macOS, Windows), binding does not fail."""
    try:
        with socket.create_connection(("127.0.0.1", number), PROBE_SECONDS):
            return True
    except OSError:
        return False


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
