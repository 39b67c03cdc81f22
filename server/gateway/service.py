"""The gateway's gRPC service: Join, relayed Connect, and health.

One event loop; the desk's transactions run on a few threads, so that no slow commit holds up a relayed stream. Messages
are taken as bytes: Join is parsed here, so that garbage gets an answer, and Connect is not parsed at all.
"""

import asyncio
import hmac
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from ludus.wire import simulation_pb2 as pb
from ludus.wire.codec import PROTOCOL_VERSION
from ludus.wire.options import REASON_METADATA
from server.errors import LudusError, RunNotFound
from server.gateway.balancer import Balancer
from server.gateway.errors import BadJoin, ProtocolNotSpoken, RunEnded, TokenRefused, abort
from server.gateway.health import Health
from server.gateway.relay import Context, Relay
from server.gateway.tickets import TicketClaims, sign
from server.settings import GatewaySettings
from server.simulators.repository import Assigned, Ended, NotFound, NotReady, SimulatorDesk

SERVICE: Final = "ludus.v1.SimulationService"
RETRY_SECONDS: Final = 0.5
"""When a simulator whose run is not ready asks again. Waiting costs the database one read."""
DESK_THREADS: Final = 8
MAX_JOIN_BYTES: Final = 4096

INTERNAL_ERROR: Final = ((REASON_METADATA, "internal_error"),)

_INCARNATION = re.compile(r"[0-9A-Za-z_-]{1,64}")
_LIMITS: Final = {"run": 200, "label": 200, "client": 100}
"""Longest text of each field in bytes."""
_log = structlog.get_logger(__name__)


class Gateway:
    """What the server's handlers call."""

    def __init__(self, settings: GatewaySettings, desk: SimulatorDesk) -> None:
        self._settings = settings
        self._desk = desk
        self._threads = ThreadPoolExecutor(DESK_THREADS, thread_name_prefix="desk")
        self._token = settings.token.get_secret_value() if settings.token else None
        # Without a configured key collectors take any ticket; it still routes streams that this gateway relays.
        self._key = settings.ticket_key.get_secret_value().encode() if settings.ticket_key else secrets.token_bytes(32)
        self._balancer = Balancer()
        self.relay = Relay(self._key)
        self.health = Health(SERVICE)

    def handlers(self) -> list[Any]:
        """Everything that the server answers."""
        methods: Any = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join),
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
        }
        return [grpc.method_handlers_generic_handler(SERVICE, methods), self.health.handler()]

    def close(self) -> None:
        """Stop: say so to relayed simulators and to whoever asks for health."""
        self.health.stop()
        self.relay.close()

    def release(self) -> None:
        """End the threads, once no call is under way."""
        self._threads.shutdown(wait=False)

    async def _join(self, request: bytes, context: Context) -> bytes:
        try:
            self._authenticate(context)
            message = _parse(request)
            response = await self._assign(message, str(context.peer()))
        except LudusError as error:
            _log.info("join_refused", code=error.code, detail=str(error), peer=context.peer())
            await abort(context, error)
        except Exception:  # noqa: BLE001  the edge of the process: a defect is logged, and the simulator tries again
            _log.exception("join_failed", peer=context.peer())
            await context.abort(
                grpc.StatusCode.INTERNAL, "The gateway made a mistake; its log has the details.", INTERNAL_ERROR
            )
        return response.SerializeToString()

    async def _connect(self, _: Any, context: Context) -> None:
        try:
            await self.relay.forward(context)
        except LudusError as error:
            _log.info("relay_refused", code=error.code, detail=str(error), peer=context.peer())
            await abort(context, error)

    def _authenticate(self, context: Context) -> None:
        if self._token is None:
            return
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        given = str(metadata.get("authorization", ""))
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise TokenRefused(given=bool(given))

    async def _assign(self, request: pb.JoinRequest, peer: str) -> pb.JoinResponse:
        def join() -> Any:
            return self._desk.join(
                request.run, request.incarnation, request.label, request.client, peer, relay=request.relay
            )

        match await asyncio.get_running_loop().run_in_executor(self._threads, join):
            case NotFound(run):
                raise RunNotFound(run)
            case Ended(run_id, state, _):
                raise RunEnded(run_id, state)
            case NotReady(_, reason):
                return pb.JoinResponse(wait=pb.Wait(reason=reason, retry_after_seconds=RETRY_SECONDS))
            case Assigned() as assigned:
                return pb.JoinResponse(assignment=self._assignment(assigned, request))
        raise AssertionError("the desk has no other answers")

    def _assignment(self, assigned: Assigned, request: pb.JoinRequest) -> pb.Assignment:
        endpoint = self._balancer.choose(assigned, request.incarnation)
        seconds = self._settings.ticket_seconds
        claims = TicketClaims(
            run_id=assigned.run_id,
            epoch=assigned.epoch,
            incarnation=request.incarnation,
            number=assigned.number,
            expires_at=time.time() + seconds,
            endpoint=endpoint,
        )
        _log.info(
            "simulator_assigned",
            run_id=assigned.run_id,
            epoch=assigned.epoch,
            incarnation=request.incarnation,
            number=assigned.number,
            endpoint=endpoint,
            relay=request.relay,
        )
        return pb.Assignment(
            address="" if request.relay else endpoint,
            ticket=sign(self._key, claims),
            ticket_valid_seconds=seconds,
            relay=request.relay,
            simulator_number=assigned.number,
            run_id=assigned.run_id,
        )


def _parse(request: bytes) -> pb.JoinRequest:
    """Check a JoinRequest. Raises BadJoin or ProtocolNotSpoken."""
    if len(request) > MAX_JOIN_BYTES:
        raise BadJoin("*", f"has {len(request)} bytes, at most {MAX_JOIN_BYTES} are possible")
    try:
        message = pb.JoinRequest.FromString(request)
    except DecodeError:
        raise BadJoin("*", "is not a valid message") from None
    if message.protocol_version != PROTOCOL_VERSION:
        raise ProtocolNotSpoken(PROTOCOL_VERSION, message.protocol_version)
    if not message.run:
        raise BadJoin("run", "is missing; name a run or give its id")
    if not _INCARNATION.fullmatch(message.incarnation):
        raise BadJoin("incarnation", "must have 1 to 64 characters of [0-9A-Za-z_-], a UUID for instance")
    for field, limit in _LIMITS.items():
        text = getattr(message, field)
        if len(text.encode()) > limit or not text.isprintable():
            raise BadJoin(field, f"must be printable and have at most {limit} bytes")
    return message
