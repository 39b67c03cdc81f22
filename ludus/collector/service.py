"""`ludus.v1.SimulationService` for gRPC's clients: Connect and Join as raw bytes.

Bytes, because parsing is the session's: garbage then ends one session with a named `Close`, where a deserializer of
grpc would abort the stream with an unnamed status, and an answer is serialised once, where it is made.

One task per stream reads; it never waits for an answer to be written.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import structlog

from ludus.collector.native import NativeSession
from ludus.collector.session import CONNECTION_LOST, DISCONNECTED, LEFT, MISTAKE, Host
from ludus.http2.calls import BROKEN, EOF, Call, GrpcCall, StreamCall, UnaryCall
from ludus.http2.server import Http2Server, ServerCall
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import ProtocolError
from ludus.protocol.contract import CallRefused, read_join
from ludus.protocol.options import SERVICE
from ludus.protocol.tls import is_loopback

log = structlog.get_logger()

METHOD = f"{SERVICE}Connect"
BREAK_SECONDS = 0.05
"""How long after a stream's end grpc may take to tell that the stream broke."""
DRAIN_SECONDS = 5.0
"""How long the last answers of a session may take to leave."""
LINGER_SECONDS = 1.0
"""How long a stream outlasts its session, at most: the client ends it when it has read Close."""
KEEPALIVE_MS = 20_000
MIN_PING_MS = 5_000
"""Clients may ping this often without being sent away."""


class SimulationHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Serves Connect, with a session per stream."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._handler = grpc.stream_stream_rpc_method_handler(self._connect)
        self.lingering = 0
        """Streams whose session is over, and whose client has not ended them yet."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of Connect, the only method that collectors serve."""
        return self._handler if handler_call_details.method == METHOD else None

    async def _connect(self, _: AsyncIterator[bytes] | None, context: StreamCall) -> None:
        loop = asyncio.get_running_loop()
        call: Call = context if isinstance(context, ServerCall) else GrpcCall(context)
        session = NativeSession(self._host, call.peer(), call.put)
        reading = loop.create_task(self._read(session, call))
        ended: asyncio.Future[None] = loop.create_future()
        session.on_end = functools.partial(ended.set_result, None)
        try:
            await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
            if session.closed is None:
                session.end(LEFT, "the simulator ended its stream", rejoin=False, tell=False)
            async with asyncio.timeout(DRAIN_SECONDS):
                await call.flushed()
        except TimeoutError:
            log.info("session_drain_timed_out", session_id=session.session_id, number=session.number)
        finally:
            session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)
            self._host.listener.ended(session)
            self.lingering += 1
            try:
                # A client whose write fails on an ended stream loses the messages that it has not read yet: Close.
                await asyncio.wait([reading], timeout=LINGER_SECONDS)
            finally:
                self.lingering -= 1
                reading.cancel()

    async def _read(self, session: NativeSession, call: Call) -> None:
        """Read to the end of the stream; messages after the end of the session are ignored."""
        try:
            while (data := await call.read()) is not EOF:
                if session.closed is not None:
                    continue
                try:
                    session.receive(data)
                except ProtocolError as error:
                    session.end_by(error)
                except Exception:  # the edge of a session: a mistake of ours must not take the others down
                    log.exception("session_failed", session_id=session.session_id, number=session.number)
                    session.end_by(MISTAKE)
            # A stream that broke ends like one that the client has ended, but then grpc cancels the handler.
            await asyncio.sleep(BREAK_SECONDS)
        except BROKEN:
            session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)


def join_handler(answer: Callable[[], pb.JoinResponse]) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """Return the method Join of a collector that games dial without a gateway and tickets.

    `answer` returns the answer to every well-formed request, or raises CallRefused.
    """

    async def join(data: bytes, call: UnaryCall) -> bytes:
        try:
            read_join(data)
            return answer().SerializeToString()
        except CallRefused as error:
            await call.abort(error.status, str(error), error.metadata)
            raise  # `abort` has raised already

    return grpc.unary_unary_rpc_method_handler(join)


def relayed(run_id: str) -> pb.JoinResponse:
    """Assign a game to the only run of a collector: a relay to the same address, which every client knows."""
    return pb.JoinResponse(assignment=pb.Assignment(relay=True, run_id=run_id))


def most_bytes(max_message_bytes: int) -> int:
    """Return the largest message that a server takes: more than allowed, so that the session can name the mistake.

    Beyond, the server says RESOURCE_EXHAUSTED.
    """
    return 2 * max_message_bytes + (1 << 20)


def make_server(
    max_message_bytes: int, host: str, *, tls: bool = False, share_port: bool = False
) -> grpc.aio.Server | Http2Server:
    """Make a server for a port of `host`: gRPC's, with a collector's keepalive, unless only this machine reaches it.

    Its port is its own, a taken one is an error, unless it is to be shared with other collectors.
    """
    most = most_bytes(max_message_bytes)
    if is_loopback(host) and not tls:
        return Http2Server(most, share_port=share_port)
    return grpc.aio.server(
        options=[
            # grpc's default would let a second server share the port, and the kernel deal simulators out at random.
            ("grpc.so_reuseport", int(share_port)),
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", 10_000),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_MS),
            ("grpc.http2.max_ping_strikes", 0),
        ]
    )
