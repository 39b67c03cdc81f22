"""Collector: the process that serves simulators, acts for their agents and cuts the experience into segments.

Threads: one event loop (uvloop) does everything: streams, policy inference, arena writes, control channel. grpc's core
has threads of its own, which only move bytes. numpy's BLAS is kept on one thread. Nothing in the loop waits: the
control channel queues the bytes that its socket does not take, and weights are copied out of shared memory within one
turn.

A process may be started before it is needed (`python -m worker.collectors --channel FD`): it imports everything and
waits for its settings. It ends when the learner does: by end of file on the channel, and for certain by
the parent-death signal.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog
import uvloop

from ludus.child_process import end_with_parent
from ludus.collector import commands, messages
from ludus.collector.carriers.local import LocalConnection
from ludus.collector.channel import Channel, ChannelClosedError, Frame
from ludus.collector.messages import Kind, read
from ludus.collector.policy import PolicyFactory
from ludus.collector.server import CollectorServer
from ludus.collector.service import SimulationHandler, join_handler, make_server, most_bytes, relayed
from ludus.collector.settings import CollectorSettings
from ludus.collector.snapshots.state import State, unpack
from ludus.collector.unity.service import UnityHandler
from ludus.http2.server import Http2Server
from ludus.logging import bind_process, configure_logging, redirect_output
from ludus.protocol.options import SERVICE

log = structlog.get_logger()

LAST_WORD_SECONDS = 1.0


async def serve(channel: Channel, policies: PolicyFactory, start: commands.Settings, restored: State | None) -> None:
    """Serve until the learner says so or is gone."""
    loop = asyncio.get_running_loop()
    collector = CollectorServer(LocalConnection(channel), policies, start, restored)
    settings = collector.host.settings
    if settings.log_path is not None:  # this process may be older than the attempt, and write to the worker's log
        redirect_output(Path(settings.log_path))
    bind_process(run_id=settings.run_id, attempt=settings.attempt, collector=start.index)
    server = make_server(settings.max_message_bytes, settings.bind_host, tls=settings.tls is not None)
    simulators = SimulationHandler(collector.host)
    players = [UnityHandler(collector.host, tickets=settings.ticket_key is not None)]
    server.add_generic_rpc_handlers((simulators, *players))
    servers: list[Any] = [server]
    if settings.ticket_key is None:
        join = {"Join": join_handler(lambda: relayed(settings.run_id))}  # a trainer that runs alone has no gateway
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.strip("/"), join),))
    port, websocket_port = bind(server, settings, start.index), 0
    if candidates := websocket_ports(settings, start.index):
        from ludus.websocket import WebSocketServer  # noqa: PLC0415  it takes a tenth of a second, and few runs use it

        origins = settings.websocket_origins or ()
        websockets = WebSocketServer(most_bytes(settings.max_message_bytes), origins, settings.tls)
        websockets.add_generic_rpc_handlers((simulators,))
        for candidate in candidates:
            with contextlib.suppress(OSError):  # gateways relay where no port is free
                websocket_port = websockets.add_port(settings.bind_host, candidate)
                servers.append(websockets)
                break
    collector.host.ports = (port, websocket_port)
    if settings.unity_port is not None:
        # Clients of this port are on this host: no ticket.
        players.append(UnityHandler(collector.host, tickets=False))
        servers.append(_serve_unity_port(settings, settings.unity_port, players[-1]))
    for each in servers:
        await each.start()
    collector.link.tell(messages.Listening(port, websocket_port))
    collector.listen()
    ticking = loop.create_task(collector.tick_forever())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)  # the learner decides; it has been signalled too
    await asyncio.wait([collector.done])
    ticking.cancel()
    failure = collector.done.exception()
    orphaned = failure is None and collector.done.result() is None
    if failure is not None:
        loop.remove_reader(channel.fileno())
        collector.abandon_sessions()
    elif (message := collector.done.result()) is not None:
        collector.close_sessions(message)
    if not orphaned:
        deadline = loop.time() + 2.0
        while (
            collector.sessions or simulators.lingering or channel.pending or any(each.unreported for each in players)
        ) and loop.time() < deadline:
            await asyncio.sleep(0.005)
    await asyncio.gather(*(each.stop(0.2) for each in servers))
    collector.host.recorder.close()
    if failure is not None:
        raise failure


def websocket_ports(settings: CollectorSettings, index: int) -> Sequence[int]:
    """Return the ports that a collector tries for WebSockets, in their order; none where it has none."""
    chosen = settings.websocket_range or settings.port_range is None
    return _ports(settings.websocket_range, index) if chosen and settings.websocket_origins is not None else ()


def _ports(between: tuple[int, int] | None, index: int) -> Sequence[int]:
    """Return the ports that a collector tries, in their order; each begins at another one."""
    if between is None:
        return (0,)
    first, last = between
    count = last - first + 1
    return [first + (index + offset) % count for offset in range(count)]


def bind(server: grpc.aio.Server | Http2Server, settings: CollectorSettings, index: int) -> int:
    """Take a port of the range, or any; raise OSError when all are taken, and ValueError for a bad file of TLS."""
    host = f"[{settings.bind_host}]" if ":" in settings.bind_host else settings.bind_host
    credentials = None
    if settings.tls is not None:
        settings.tls.check()  # gRPC would call a bad file a port that is taken
        credentials = settings.tls.credentials()
    for port in _ports(settings.port_range, index):
        try:
            if credentials is None or isinstance(server, Http2Server):
                bound = server.add_insecure_port(f"{host}:{port}")
            else:
                bound = server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError:
            continue
        if bound:
            return int(bound)
    raise OSError(f"no free port to listen on: {settings.bind_host}, ports {settings.port_range or 'any'}")


def _serve_unity_port(settings: CollectorSettings, port: int, players: UnityHandler) -> grpc.aio.Server | Http2Server:
    """Make a server for players that dial in by themselves, on loopback of either kind.

    Several collectors share the port, and the kernel deals the players out; the supervisor holds a lock on it, so that
    collectors of other attempts are not among them.
    """
    several = settings.count - settings.edge_places > 1
    server = make_server(settings.max_message_bytes, "127.0.0.1", share_port=several)
    server.add_generic_rpc_handlers((players,))
    try:
        server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        raise OSError(
            f"port {port} (simulators.unity_port) is taken on this host: end the program that listens there, an "
            "mlagents-learn perhaps, or choose another port"
        ) from None
    with contextlib.suppress(RuntimeError):  # a host without IPv6
        server.add_insecure_port(f"[::1]:{port}")
    return server


def say_why(channel: Channel, error: Exception) -> None:
    """Send the learner the reason why this process ends; it has `LAST_WORD_SECONDS` to take it."""
    reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(ChannelClosedError):
        channel.send(Kind.MESSAGE, messages.Failed(reason).pack())
        deadline = time.monotonic() + LAST_WORD_SECONDS
        while channel.pending and time.monotonic() < deadline:
            select.select([], [channel], [], LAST_WORD_SECONDS)
            channel.flush()


def wait_for_settings(channel: Channel) -> tuple[commands.Settings, State | None] | None:
    """Block until the settings come, with the snapshots of a former attempt; None when the learner went away."""
    come: list[Frame] = []
    while True:
        select.select([channel], [], [])
        try:
            frames = channel.receive()
        except ChannelClosedError:
            return None
        come += frames
        if come:
            settings = read(come[0])
            assert isinstance(settings, commands.Settings), "nothing else is sent before the collector listens"
            if len(come) > settings.restored:
                return settings, unpack(come[1].payload) if settings.restored else None


def main(policies: PolicyFactory) -> None:
    """Run a collector. The caller has imported everything."""
    run("collector", lambda channel, start, restored: serve(channel, policies, start, restored))


def run(process: str, work: Callable[[Channel, commands.Settings, State | None], Coroutine[Any, Any, None]]) -> None:
    """Wait for settings, then do the work of a process of the trainer; `process` names it in its log."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the Unix socket to the learner")
    arguments = parser.parse_args()
    end_with_parent()
    configure_logging(process)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the learner too, which decides
    channel = Channel(socket.socket(fileno=arguments.channel))
    try:
        start = wait_for_settings(channel)
        if start is None:
            return
        uvloop.run(work(channel, *start))
    except Exception as error:  # the edge of the process
        # A port or a file that is not to be had is the operator's matter: the reason says all. Else a mistake of ours.
        log.exception("collector_failed", reason=str(error), exc_info=not isinstance(error, OSError))
        say_why(channel, error)
        sys.exit(1)
    finally:
        gc.freeze()  # the learner waits for the end: what is left, torch's modules above all, the kernel frees at once
