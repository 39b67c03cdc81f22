"""Runs the gateway in this process: the body of `ludus gateway`."""

import asyncio
import signal
from contextlib import suppress
from typing import Final

import grpc.aio
import structlog

from ludus.protocol.options import server_options
from ludus.protocol.tickets import MIN_KEY_BYTES
from ludus.protocol.tls import is_loopback
from server.gateway.service import PLACEMENT_THREADS, Gateway
from server.kit.db.database import Database
from server.kit.errors import LudusError
from server.kit.listening import GatewaySettings
from server.kit.ports import CannotStart
from server.kit.queue import WakeUpQueue, make_celery
from server.kit.settings import Settings
from server.kit.telemetry import LoopHeartbeat, Probes, serve_metrics
from server.kit.tracing import Tracer, open_tracer
from server.simulators.repository import AWAITED_SECONDS, Placement

CONNECTIONS: Final = PLACEMENT_THREADS + 2
"""Connections with the database: one for each thread, for the watcher of tokens and for that of waiting simulators."""
GRACE_SECONDS: Final = 5.0
"""Time that a stopping gateway gives its open calls."""
HANGS_SECONDS: Final = 30.0
"""A gateway whose loop has not turned for so long fails its liveness probe."""

_log = structlog.get_logger(__name__)


def serve(settings: Settings, database: Database | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises CannotStart."""
    database = database or Database.from_settings(settings.database, CONNECTIONS)
    try:
        check(settings.gateway)
        asyncio.run(_serve(settings, database))
    finally:
        database.close()


def check(settings: GatewaySettings) -> None:
    """Refuse settings that would let anybody in. Raises CannotStart."""
    if not settings.demands_token and not is_loopback(settings.host):
        raise CannotStart(
            f"The gateway would listen on {settings.host} for everybody: set LUDUS_GATEWAY__TOKEN, "
            "or LUDUS_GATEWAY__REQUIRE_TOKEN=true for those of `ludus token create`, "
            "or listen on 127.0.0.1 (LUDUS_GATEWAY__HOST)."
        )
    if settings.ticket_key is not None and len(settings.ticket_key.get_secret_value().encode()) < MIN_KEY_BYTES:
        raise CannotStart(f"LUDUS_GATEWAY__TICKET_KEY needs at least {MIN_KEY_BYTES} bytes.")


def open_placement(settings: Settings, database: Database) -> Placement:
    """Return the placement of a gateway.

    A game whose call is held asks again after `hold_seconds`. Another one asks again after at most 19 s
    (`server.gateway.waiting.LONGEST_PAUSE_SECONDS`), however short those are.
    """
    awaited_seconds = max(2 * settings.gateway.hold_seconds, AWAITED_SECONDS)
    return Placement(database, WakeUpQueue(make_celery(settings)), awaited_seconds)


async def start(
    settings: GatewaySettings, placement: Placement, tracer: Tracer | None = None
) -> tuple[grpc.aio.Server, Gateway, int]:
    """Start a server; return it with its gateway and its port. Raises CannotStart."""
    gateway = Gateway(settings, placement, tracer=tracer)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers(tuple(gateway.handlers()))
    address = f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}"
    try:
        if settings.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, settings.tls.credentials())
    except RuntimeError as error:
        raise CannotStart(
            f"The gateway can't listen on {address} ({error}). If the port is in use, choose another one with "
            "LUDUS_GATEWAY__PORT."
        ) from None
    if settings.websocket_port != "off":
        gateway.websockets.add_generic_rpc_handlers(gateway.handlers()[:1])
        try:
            gateway.websocket_port = gateway.websockets.add_port(settings.host, settings.websocket_port)
        except OSError as error:
            raise CannotStart(
                f"The gateway can't listen for WebSockets on {settings.host}, port {settings.websocket_port} "
                f"({error.strerror}). If the port is in use, choose another one with LUDUS_GATEWAY__WEBSOCKET_PORT."
            ) from None
        await gateway.websockets.start()
    await server.start()
    return server, gateway, port


async def stop(server: grpc.aio.Server, gateway: Gateway) -> None:
    """Send relayed simulators away, let calls finish for a while, and end."""
    gateway.close()
    await asyncio.gather(server.stop(GRACE_SECONDS), gateway.websockets.stop(GRACE_SECONDS))
    gateway.release()


def _answers(database: Database) -> bool:
    """Return whether the database answers, which joins need."""
    try:
        database.ping()
    except LudusError:
        return False
    return True


async def _beat(heartbeat: LoopHeartbeat) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(1)


async def _serve(settings: Settings, database: Database) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    placement = open_placement(settings, database)
    tracer = open_tracer(settings.telemetry, "gateway")
    server, gateway, port = await start(settings.gateway, placement, tracer)
    heartbeat = LoopHeartbeat(HANGS_SECONDS)
    beating = asyncio.create_task(_beat(heartbeat))
    probes = Probes(heartbeat.is_alive, lambda: heartbeat.is_alive() and _answers(database))
    serve_metrics(gateway.telemetry.registry, settings.telemetry, settings.telemetry.gateway_port, probes)
    _log.info("gateway_started", host=settings.gateway.host, port=port, authenticated=settings.gateway.demands_token)
    await stopping.wait()
    beating.cancel()
    _log.info("gateway_stopping", relayed=gateway.relay.streams)
    with suppress(asyncio.CancelledError):
        await stop(server, gateway)
    if tracer is not None:
        tracer.close()
