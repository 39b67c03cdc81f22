"""Relayed streams: byte for byte, with the collector's own status, and a way out when the gateway stops."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest
from pydantic import SecretStr

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import REASON_METADATA, TICKET_METADATA, server_options
from ludus.protocol.tickets import TicketClaims, sign
from ludus.sdk.connection import SimulatorConnection
from ludus.sdk.contract.scripted import ScriptedServer, finish_after
from ludus.sdk.join import Target
from server.gateway import relay
from server.gateway.main import start
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.ports import CannotStart
from server.simulators.repository import Placement
from tests.ports import free_port
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run
from tests.toys.catch import Catch

CONNECT = "/ludus.v1.SimulationService/Connect"


class EchoCollector:
    """Sends every message back as it came, then what `ending` does."""

    def __init__(self, ending: Any = None) -> None:
        self.ended = threading.Event()
        self._ending = ending
        self._server = grpc.server(ThreadPoolExecutor(4), options=server_options())
        handler = grpc.stream_stream_rpc_method_handler(self._echo)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("ludus.v1.SimulationService", {"Connect": handler}),
                grpc.method_handlers_generic_handler("ludus.v1.CollectorService", {"Collect": handler}),
            )
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def _echo(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.ended.set)
        yield from requests
        if self._ending is not None:
            self._ending(context)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()


def ticket(address: str, *, key: str = KEY, seconds: float = 60) -> list[tuple[str, str]]:
    claims = TicketClaims("run-catch", 1, "one", 0, time.time() + seconds, address)
    return [(TICKET_METADATA, sign(key.encode(), claims))]


def until(done: threading.Event) -> Iterator[bytes]:
    """Messages without end, until the test is over."""
    while not done.wait(0.05):
        yield b""


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    call: Any = error.value
    return call.code(), dict(call.trailing_metadata()).get(REASON_METADATA, "")


def test_any_bytes_pass_unchanged(gateway: GatewayThread) -> None:
    messages = [b"", b"\xff\xff garbage", bytes(10_000_000)]

    with EchoCollector() as collector:
        echoes = list(gateway.channel.stream_stream(CONNECT)(iter(messages), metadata=ticket(collector.address)))

    assert echoes == messages


def test_a_simulator_plays_through_the_gateway(gateway: GatewayThread) -> None:
    with ScriptedServer(finish_after(20), behind_gateway=True) as collector:
        add_run(gateway.database, collector.address)
        dialer = SimulatorConnection(Catch(), Target(gateway.address, "catch", TOKEN))
        dialer.join_client.relay = True

        ending = asyncio.run(dialer.play())

    assert collector.violations == []
    assert ending.finished
    assert ending.decisions >= 60


def test_the_collectors_status_reaches_the_simulator(gateway: GatewayThread) -> None:
    def ending(context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(((REASON_METADATA, "too_late"),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")

    with EchoCollector(ending) as collector, pytest.raises(grpc.RpcError, match="enough") as error:
        list(gateway.channel.stream_stream(CONNECT)(iter([b"x"]), metadata=ticket(collector.address)))

    assert refusal(error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_late")


@pytest.mark.parametrize("status", ["UNAVAILABLE", "UNKNOWN", "INTERNAL"])
def test_a_collector_whose_connection_breaks_is_lost_however_grpc_calls_it(gateway: GatewayThread, status: str) -> None:
    def ending(context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode[status], "Stream removed")

    with EchoCollector(ending) as collector, pytest.raises(grpc.RpcError) as error:
        list(gateway.channel.stream_stream(CONNECT)(iter([b"x"]), metadata=ticket(collector.address)))

    assert refusal(error) == (grpc.StatusCode.UNAVAILABLE, "collector_lost")


def test_a_simulator_that_goes_away_ends_its_collectors_stream(gateway: GatewayThread) -> None:
    with EchoCollector() as collector:
        gone = threading.Event()
        call = gateway.channel.stream_stream(CONNECT)(until(gone), metadata=ticket(collector.address))
        next(call)
        call.cancel()

        assert collector.ended.wait(30)
        gone.set()


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (list, "bad_ticket"),
        (lambda: [(TICKET_METADATA, "nonsense")], "bad_ticket"),
        (lambda: ticket("127.0.0.1:1", key="another key that is as long as this"), "bad_ticket"),
        (lambda: ticket(""), "bad_ticket"),
        (lambda: ticket("127.0.0.1:1", seconds=-1), "ticket_expired"),
    ],
)
def test_a_stream_without_a_valid_ticket_is_refused(
    gateway: GatewayThread, metadata: Callable[[], list[tuple[str, str]]], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        list(gateway.channel.stream_stream(CONNECT)(iter([b"x"]), metadata=metadata()))

    assert refusal(error) == (grpc.StatusCode.UNAUTHENTICATED, reason)


def test_a_dead_collector_is_named(gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "REACH_SECONDS", 0.3)
    address = f"127.0.0.1:{free_port()}"

    with pytest.raises(grpc.RpcError, match=address) as error:
        list(gateway.channel.stream_stream(CONNECT)(iter([b"x"]), metadata=ticket(address)))

    assert refusal(error) == (grpc.StatusCode.UNAVAILABLE, "collector_unreachable")


def test_a_stopping_gateway_asks_relayed_simulators_to_join_again(gateway: GatewayThread) -> None:
    with EchoCollector() as collector:
        done = threading.Event()
        call = gateway.channel.stream_stream(CONNECT)(until(done), metadata=ticket(collector.address))
        next(call)

        stopper = threading.Thread(target=gateway.stop)
        stopper.start()
        *_, last = call
        done.set()
        stopper.join(15)

    close = pb.ConnectResponse.FromString(last).close
    assert (close.code, close.rejoin) == ("collector_closing", True)


def test_a_taken_port_is_an_error(gateway: GatewayThread, database: Database) -> None:
    settings = GatewaySettings(port=int(gateway.address.rpartition(":")[2]), token=SecretStr(TOKEN))

    with pytest.raises(CannotStart, match="LUDUS_GATEWAY__PORT"):
        asyncio.run(_start(settings, database))


async def _start(settings: GatewaySettings, database: Database) -> None:
    await start(settings, Placement(database))
