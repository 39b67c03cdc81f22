"""Simulators that are relayed, when the token that they joined with is revoked: they are told, and do not come back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from ludus.games.unity.bridge import BridgeSession
from ludus.games.unity.messages import GOODBYE
from ludus.protocol.options import COLLECTOR_SERVICE, TICKET_METADATA
from ludus.schemas.tokens import Scope
from ludus.sdk.connection import SimulatorConnection
from ludus.sdk.contract.scripted import ScriptedServer, finish_after
from ludus.sdk.errors import CannotConnect
from ludus.sdk.join import Target
from server.access.repository import TokenRepository
from server.access.service import TokenService
from server.kit import token_watcher
from server.kit.db.database import Database
from server.kit.principal import everything
from tests.server.gateway.conftest import TOKEN, GatewayThread, add_run
from tests.server.gateway.test_calls import Collector, call, until_over
from tests.server.gateway.test_collectors import join as join_collector
from tests.server.gateway.test_relay import CONNECT, EchoCollector, refusal, until
from tests.toys.catch import Catch
from tests.waiting import eventually

BOUND_SECONDS = 10.0
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, "token_refused")


@pytest.fixture(scope="module", autouse=True)
def _looks_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_watcher, "LOOK_SECONDS", 0.5)
        yield


@pytest.fixture
def token(database: Database) -> str:
    return made(database)


def made(database: Database) -> str:
    with database.write() as session:
        return TokenService(session, everything("test")).create("t", [Scope.SIMULATE], project="default").text


def revoke(database: Database, token: str) -> None:
    with database.write() as session:
        TokenRepository(session).revoke(f"tok_{token.split('_')[1]}")


def joined(gateway: GatewayThread, token: str, session_id: str = "one") -> list[tuple[str, str]]:
    assignment = gateway.join(session_id=session_id, token=token, relay=True).assignment
    return [(TICKET_METADATA, assignment.ticket)]


def test_a_relayed_stream_ends_and_those_of_others_go_on(gateway: GatewayThread, token: str) -> None:
    with EchoCollector() as collector:
        add_run(gateway.database, collector.address)
        done = threading.Event()
        connect = gateway.channel.stream_stream(CONNECT)
        stream = connect(until(done), metadata=joined(gateway, token))
        others = [
            connect(until(done), metadata=joined(gateway, other, f"other-{number}"))
            for number, other in enumerate([TOKEN, made(gateway.database)])
        ]
        for each in (stream, *others):
            next(each)
        began = time.monotonic()

        revoke(gateway.database, token)
        with pytest.raises(grpc.RpcError, match="revoked") as error:
            list(stream)

        assert refusal(error) == REFUSED
        assert time.monotonic() - began < BOUND_SECONDS
        assert collector.ended.wait(5)
        assert [next(each) for each in others] == [b"", b""]
        done.set()


def test_the_relayed_stream_of_an_edge_collector_ends_too(gateway: GatewayThread, token: str) -> None:
    with EchoCollector() as reader:
        add_run(gateway.database, edge=reader.address)
        assignment = join_collector(gateway, token, relay=True).assignment
        assert (assignment.relay, assignment.address) == (True, "")
        done = threading.Event()
        collect = gateway.channel.stream_stream(f"{COLLECTOR_SERVICE}Collect")
        stream = collect(until(done), metadata=[(TICKET_METADATA, assignment.ticket)])
        next(stream)

        revoke(gateway.database, token)
        with pytest.raises(grpc.RpcError, match="revoked") as error:
            list(stream)

        assert refusal(error) == REFUSED
        assert reader.ended.wait(5)
        done.set()


def test_a_ticket_of_a_revoked_token_opens_nothing_for_long(gateway: GatewayThread, token: str) -> None:
    with EchoCollector() as collector:
        add_run(gateway.database, collector.address)
        ticket = joined(gateway, token)
        revoke(gateway.database, token)
        done = threading.Event()
        connect = gateway.channel.stream_stream(CONNECT)

        for seconds in (BOUND_SECONDS, 1.0):  # the second time the gateway knows
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as error:
                list(connect(until(done), metadata=ticket))
            assert refusal(error) == REFUSED
            assert time.monotonic() - began < seconds
        done.set()


def test_a_simulator_is_told_and_does_not_come_back(gateway: GatewayThread, token: str) -> None:
    with ScriptedServer(finish_after(10**9), behind_gateway=True) as collector:
        add_run(gateway.database, collector.address)
        dialer = SimulatorConnection(Catch(), Target(gateway.address, "catch", token))
        dialer.join_client.relay = True
        threading.Timer(1.0, revoke, (gateway.database, token)).start()

        with pytest.raises(CannotConnect, match="revoked") as refused:
            asyncio.run(asyncio.wait_for(dialer.play(), 1.0 + BOUND_SECONDS))

    assert refused.value.code == "unauthenticated"


@pytest.mark.parametrize("waiting", [True, False], ids=["in a call", "between calls"])
def test_a_unity_games_calls_are_refused(gateway: GatewayThread, token: str, waiting: bool) -> None:
    held = threading.Event()

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"hold":
            held.set()
        return hold(request, context)

    with Collector(answer) as collector:
        add_run(gateway.database, collector.address)
        (_, ticket), *_ = joined(gateway, token)
        assert call(gateway, b"x", ticket)[0] == b"x"
        if waiting:
            threading.Timer(0.5, revoke, (gateway.database, token)).start()
        else:
            revoke(gateway.database, token)
            gateway.gateway.watcher.hurry()
            eventually(lambda: gateway.gateway.calls.lines == 0)

        with pytest.raises(grpc.RpcError, match="revoked") as error:
            call(gateway, b"hold", ticket)

        assert refusal(error) == REFUSED
        assert held.is_set() == waiting
        eventually(lambda: gateway.gateway.calls.lines == 0)


def test_a_bridge_is_told_and_says_goodbye_to_its_game(gateway: GatewayThread, token: str) -> None:
    with Collector(hold) as collector:
        add_run(gateway.database, collector.address)

        async def play() -> tuple[bytes, Any]:
            session = BridgeSession(Target(gateway.address, "catch", token), _silent, _silent)
            session._join_client.relay = True
            await session.answer(b"introduction")
            threading.Timer(0.5, revoke, (gateway.database, token)).start()
            reply = await asyncio.wait_for(session.answer(b"hold"), BOUND_SECONDS)
            await session.leave()
            return reply, session.outcome

        reply, outcome = asyncio.run(play())

    assert reply == GOODBYE
    assert isinstance(outcome, CannotConnect)
    assert "revoked" in str(outcome)


def hold(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Answer, but `hold` only when nobody waits any more."""
    return until_over(request, context) if request == b"hold" else request


def _silent(*_: object) -> None:
    pass
