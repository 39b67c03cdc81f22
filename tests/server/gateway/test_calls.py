"""Relayed calls of Unity games: byte for byte, with the collector's own status, on one channel for each session id."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Self

import grpc
import pytest

from ludus.games.unity.bridge import BridgeSession
from ludus.games.unity.messages import GOODBYE
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import (
    CLIENT_METADATA,
    CLOSE_METADATA,
    EXCHANGE,
    REASON_METADATA,
    SESSION_ID_METADATA,
    TICKET_METADATA,
    server_options,
)
from ludus.protocol.tickets import TicketClaims, sign
from ludus.sdk.join import Target
from server.gateway import relay, service
from tests.ports import free_port
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run
from tests.waiting import eventually

Answer = Callable[[bytes, grpc.ServicerContext], bytes]


class Collector:
    """Answers each call with what `answer` returns; by default, with what was said."""

    def __init__(self, answer: Answer = lambda request, _context: request) -> None:
        self.metadata: list[dict[str, Any]] = []
        self.peers: list[str] = []
        self.cancelled = threading.Event()
        self._answer = answer
        self._server = grpc.server(ThreadPoolExecutor(4), options=server_options())
        service, _, method = EXCHANGE[1:].partition("/")
        handler = grpc.unary_unary_rpc_method_handler(self._exchange)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def _exchange(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not context.add_callback(lambda: context.code() or self.cancelled.set()):
            self.cancelled.set()  # the call is over already
        self.peers.append(context.peer())
        self.metadata.append(dict(context.invocation_metadata()))
        return self._answer(request, context)

    def kill(self) -> None:
        self._server.stop(0).wait()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def until_over(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Answer when the call is over."""
    over = threading.Event()
    if context.add_callback(over.set):
        over.wait(30)
    return request


def ticket(address: str, *, key: str = KEY, seconds: float = 60, session_id: str = "one") -> str:
    return sign(key.encode(), TicketClaims("run-catch", 1, session_id, 0, time.time() + seconds, address))


def call(gateway: GatewayThread, request: bytes, ticket: str, **more: str) -> tuple[bytes, dict[str, Any]]:
    metadata = [(TICKET_METADATA, ticket), *((key.replace("_", "-"), value) for key, value in more.items())]
    reply, done = gateway.channel.unary_unary(EXCHANGE).with_call(request, metadata=metadata, timeout=20)
    return reply, dict(done.trailing_metadata())


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    call: Any = error.value
    return call.code(), dict(call.trailing_metadata()).get(REASON_METADATA, "")


@pytest.mark.parametrize("message", [b"", b"\xff\xff garbage", bytes(10_000_000)])
def test_any_bytes_pass_unchanged(gateway: GatewayThread, message: bytes) -> None:
    with Collector() as collector:
        assert call(gateway, message, ticket(collector.address))[0] == message


def test_our_metadata_pass_in_both_directions_and_nothing_else(gateway: GatewayThread) -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata(((CLOSE_METADATA, b"\x00\xff"), ("secret", "x")))
        return request

    with Collector(answer) as collector:
        proof = ticket(collector.address)
        _, trailing = call(gateway, b"x", proof, ludus_session_id="one", ludus_client="ludus-unity/1", other="x")

    assert trailing == {CLOSE_METADATA: b"\x00\xff"}
    (seen,) = collector.metadata
    assert {key: value for key, value in seen.items() if key != "user-agent"} == {
        TICKET_METADATA: proof,
        SESSION_ID_METADATA: "one",
        CLIENT_METADATA: "ludus-unity/1",
    }


def test_an_session_id_keeps_its_channel_and_others_have_their_own(gateway: GatewayThread) -> None:
    with Collector() as collector:
        for session_id in ("one", "two", "one", "two"):
            call(gateway, b"x", ticket(collector.address, session_id=session_id, seconds=60))
        assert gateway.gateway.calls.lines == 2


def test_a_new_ticket_takes_the_place_of_the_session_ids_earlier_one(gateway: GatewayThread) -> None:
    with Collector() as first, Collector() as second:
        call(gateway, b"x", ticket(first.address))
        call(gateway, b"x", ticket(second.address))

        assert gateway.gateway.calls.lines == 1
    assert (len(first.metadata), len(second.metadata)) == (1, 1)


def test_a_session_outlives_its_ticket(gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        proof = ticket(collector.address)
        call(gateway, b"x", proof)
        clock = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
        monkeypatch.setattr(relay, "time", clock)
        with pytest.raises(grpc.RpcError) as error:
            call(gateway, b"x", ticket(collector.address, session_id="another"))
        assert refusal(error)[1] == "ticket_expired"

        assert call(gateway, b"x", proof)[0] == b"x"


def test_a_channel_that_is_idle_is_closed(gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "IDLE_SECONDS", 0.2)
    with Collector() as collector:
        call(gateway, b"x", ticket(collector.address))
        eventually(lambda: gateway.gateway.calls.lines == 0, "the channel is closed")

        assert call(gateway, b"x", ticket(collector.address))[0] == b"x"


def test_the_collectors_status_reaches_the_bridge(gateway: GatewayThread) -> None:
    def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata(((REASON_METADATA, "ticket_expired"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the attempt is over")
        raise AssertionError

    with Collector(answer) as collector, pytest.raises(grpc.RpcError, match="the attempt is over") as error:
        call(gateway, b"x", ticket(collector.address))

    assert refusal(error) == (grpc.StatusCode.FAILED_PRECONDITION, "ticket_expired")


def test_a_bridge_that_goes_away_ends_its_collectors_call(gateway: GatewayThread) -> None:
    with Collector(until_over) as collector:
        metadata = [(TICKET_METADATA, ticket(collector.address))]
        pending = gateway.channel.unary_unary(EXCHANGE).future(b"x", metadata=metadata)
        eventually(lambda: collector.metadata, "the collector has the call")
        pending.cancel()

        assert collector.cancelled.wait(30)


def test_a_game_without_a_bridge_is_told_to_use_one(gateway: GatewayThread) -> None:
    with pytest.raises(grpc.RpcError, match="ludus unity") as error:
        gateway.channel.unary_unary(EXCHANGE)(b"x", timeout=20)

    assert refusal(error) == (grpc.StatusCode.UNAUTHENTICATED, "bad_ticket")


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (lambda: "nonsense", "bad_ticket"),
        (lambda: ticket("127.0.0.1:1", key="another key that is as long as this"), "bad_ticket"),
        (lambda: ticket(""), "bad_ticket"),
        (lambda: ticket("127.0.0.1:1", seconds=-1), "ticket_expired"),
    ],
)
def test_a_call_without_a_valid_ticket_is_refused(
    gateway: GatewayThread, proof: Callable[[], str], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        call(gateway, b"x", proof())

    assert refusal(error) == (grpc.StatusCode.UNAUTHENTICATED, reason)
    assert gateway.gateway.calls.lines == 0


def test_a_dead_collector_is_named_and_forgotten(gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "REACH_SECONDS", 0.3)
    address = f"127.0.0.1:{free_port()}"

    with pytest.raises(grpc.RpcError, match=address) as error:
        call(gateway, b"x", ticket(address))

    assert refusal(error) == (grpc.StatusCode.UNAVAILABLE, "collector_unreachable")
    assert gateway.gateway.calls.lines == 0


def test_the_death_of_a_collector_in_a_call_reaches_the_bridge(gateway: GatewayThread) -> None:
    held, over = threading.Event(), threading.Event()

    def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
        held.set()
        over.wait(60)
        return request

    with Collector(answer) as collector:
        pending = gateway.channel.unary_unary(EXCHANGE).future(
            b"x", metadata=[(TICKET_METADATA, ticket(collector.address))]
        )
        assert held.wait(30)
        collector.kill()

        assert pending.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        over.set()


def test_a_stopping_gateway_asks_bridges_to_join_again(gateway: GatewayThread) -> None:
    held = threading.Event()

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        held.set()
        return until_over(request, context)

    with Collector(answer) as collector:
        pending = gateway.channel.unary_unary(EXCHANGE).future(
            b"x", metadata=[(TICKET_METADATA, ticket(collector.address))]
        )
        assert held.wait(30)
        gateway.stop()

        assert pending.result(30) == GOODBYE
        close = pb.Close.FromString(dict(pending.trailing_metadata())[CLOSE_METADATA])
    assert (close.code, close.rejoin) == ("collector_closing", True)


def test_a_unity_game_plays_through_the_gateway(gateway: GatewayThread) -> None:
    async def play(messages: list[bytes]) -> list[bytes]:
        session = BridgeSession(Target(gateway.address, "catch", TOKEN), _silent, _silent)
        session._join_client.relay = True
        replies = [await session.answer(message) for message in messages]
        await session.leave()
        return replies

    messages = [b"introduction", b"readiness", bytes(5_000_000)]
    with Collector() as collector:
        add_run(gateway.database, collector.address)

        assert asyncio.run(play(messages)) == messages

    assert len({metadata[SESSION_ID_METADATA] for metadata in collector.metadata}) == 1
    assert len(set(collector.peers)) == 1


def _silent(*_: object) -> None:
    pass
