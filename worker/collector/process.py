"""Collector: the process that serves simulators, acts for their agents and cuts the experience into segments.

Threads: one event loop (uvloop) does everything: streams, policy inference, arena writes, control channel. grpc's core
has threads of its own, which only move bytes. numpy's BLAS is kept on one thread. Nothing in the loop waits: the
control channel queues what its socket does not take, and weights are copied out of shared memory within one turn.

A process may be started before anybody needs it (`python -m worker.collector --channel FD`): it imports everything and
waits for its settings. It ends when the learner does: by end of file on the channel, and for certain by
PR_SET_PDEATHSIG.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import socket

import grpc.aio
import structlog

from server.gateway.credentials import server_credentials
from server.logging import bind_process
from server.tls import TlsPair
from worker.collector import messages
from worker.collector.direct import DirectJoinHandler
from worker.collector.handover import State, unpack
from worker.collector.hub import TICK_SECONDS, Collector
from worker.collector.messages import Kind
from worker.collector.service import SimulationHandler, make_server
from worker.collector.settings import CollectorSettings
from worker.collector.unity.service import UnityHandler
from worker.experience.channel import Channel, ChannelClosedError, Frame

log = structlog.get_logger()


async def serve(channel: Channel, start: messages.Settings, kept: State | None) -> None:
    """Serve until the learner says so or is gone."""
    loop = asyncio.get_running_loop()
    collector = Collector(channel, start, kept)
    settings = collector.settings
    bind_process(run_id=settings.run_id, epoch=settings.epoch, collector=start.index)
    server = make_server(settings.max_message_bytes)
    players = [UnityHandler(collector, tickets=settings.ticket_key is not None)]
    server.add_generic_rpc_handlers((SimulationHandler(collector), *players))
    servers = [server]
    if settings.ticket_key is None:
        server.add_generic_rpc_handlers((DirectJoinHandler(settings.run_id),))
    try:
        port = collector.port = _bind(server, settings, start.index)
        if settings.unity_port is not None:
            # Whoever can dial in there is on this host: no ticket.
            players.append(UnityHandler(collector, tickets=False))
            servers.append(_serve_unity_port(settings, settings.unity_port, players[-1]))
    except OSError as error:
        channel.send(Kind.FAILED, messages.Failed(str(error)).pack())
        return
    for each in servers:
        await each.start()
    collector.link.tell(messages.Listening(port))
    loop.add_reader(channel.fileno(), collector.readable)
    ticking = loop.create_task(_tick_forever(collector))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)  # the learner decides; it has been signalled too
    message = await collector.done
    ticking.cancel()
    if message is not None:
        collector.close_sessions(message)
        deadline = loop.time() + 2.0
        while (collector.sessions or channel.pending or any(each.untold for each in players)) and (
            loop.time() < deadline
        ):
            await asyncio.sleep(0.005)
    await asyncio.gather(*(each.stop(0.2) for each in servers))


async def _tick_forever(collector: Collector) -> None:
    try:
        clock = asyncio.get_running_loop().time
        next_alive = 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            collector.tick()
            if clock() >= next_alive:
                next_alive = clock() + messages.ALIVE_SECONDS
                collector.link.tell(messages.Alive())
    except Exception as error:  # the edge of the process, as in `Turns`
        log.exception("tick_failed")
        collector.fail(error)


def _bind(server: grpc.aio.Server, settings: CollectorSettings, index: int) -> int:
    """Take a port of the range, or any; raise OSError with the range when all are taken."""
    host = f"[{settings.bind_host}]" if ":" in settings.bind_host else settings.bind_host
    if settings.port_range is None:
        ports: list[int] = [0]
    else:
        first, last = settings.port_range
        count = last - first + 1
        ports = [first + (index + offset) % count for offset in range(count)]
    credentials = None if settings.tls is None else server_credentials(TlsPair.read(settings.tls))
    for port in ports:
        try:
            if credentials is None:
                bound = server.add_insecure_port(f"{host}:{port}")
            else:
                bound = server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError:
            continue
        if bound:
            return int(bound)
    raise OSError(f"no free port to listen on: {settings.bind_host}, ports {settings.port_range or 'any'}")


def _serve_unity_port(settings: CollectorSettings, port: int, players: UnityHandler) -> grpc.aio.Server:
    """Make a server for players that dial in by themselves, on loopback of either kind.

    Several collectors share the port, and the kernel deals the players out; the supervisor holds a lock on it, so that
    nobody else's collectors are among them.
    """
    server = make_server(settings.max_message_bytes, share_port=settings.count > 1)
    server.add_generic_rpc_handlers((players,))
    try:
        server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        raise OSError(
            f"port {port} (simulators.unity_port) is taken on this host: end what listens there, an mlagents-learn "
            "perhaps, or choose another port"
        ) from None
    with contextlib.suppress(RuntimeError):  # a host without IPv6
        server.add_insecure_port(f"[::1]:{port}")
    return server


def wait_for_settings(sock: socket.socket) -> tuple[Channel, messages.Settings, State | None] | None:
    """Block until the settings come, with what a former attempt handed over; None when the learner went away."""
    channel = Channel(sock)
    come: list[Frame] = []
    while True:
        select.select([sock], [], [])
        try:
            frames = channel.receive()
        except ChannelClosedError:
            return None
        come += frames
        if come:
            settings = messages.Settings.unpack(come[0].payload)
            if len(come) > settings.kept:
                # Nothing else is sent before the collector listens.
                assert [frame.kind for frame in come] == [Kind.SETTINGS, Kind.KEPT][: 1 + settings.kept]
                return channel, settings, unpack(come[1].payload) if settings.kept else None


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the learner's thread that started it ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the call above
