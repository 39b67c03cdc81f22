"""Simulators that join and play over WebSockets: at a real gateway, with real collectors, direct and relayed."""

import asyncio
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import select
from websockets.exceptions import ConnectionClosed

from ludus.collector.messages import SimulatorLeft, SimulatorStarted
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import array_to_tensor
from ludus.protocol.specs import spec_to_message
from server.gateway.main import start
from server.kit import token_watcher
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.ports import CannotStart
from server.simulators.models import Simulator
from server.simulators.repository import Placement
from tests.ludus.collector.stack import SPEC, Learner, learner, pids_of
from tests.ludus.protocol.test_tls import SERVED
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run
from tests.server.gateway.test_relay import EchoCollector
from tests.server.gateway.test_revocation import made, revoke
from tests.websockets import Refused, Stream, join, message_of, stream
from worker.collectors.events import CollectorDied, Endpoint

RUN = "run-1"


def gateway_of(database: Database, **options: Any) -> GatewayThread:
    settings = {"token": SecretStr(TOKEN), "ticket_key": SecretStr(KEY), "websocket_port": 0, **options}
    return GatewayThread(GatewaySettings(port=0, **settings), database)


def where(gateway: GatewayThread, host: str = "127.0.0.1") -> str:
    return f"{host}:{gateway.gateway.websocket_port}"


@pytest.fixture
def collectors() -> Iterator[Learner]:
    with learner(ticket_key=KEY.encode(), websocket_origins=(), step_timeout=5.0, max_message_bytes=100_000) as trainer:
        yield trainer


@pytest.fixture
def front(database: Database, collectors: Learner) -> Iterator[GatewayThread]:
    endpoint = collectors.endpoints[0]
    add_run(database, endpoint.address, name="1", generation=0, websocket=endpoint.websocket)
    with gateway_of(database) as gateway:
        yield gateway


def hello(peer: Stream, ticket: str, session_id: str = "one") -> pb.ConnectResponse:
    greeting = pb.Hello(ticket=ticket, protocol_version=1, session_id=session_id, behaviors=[spec_to_message(SPEC)])
    peer.send(pb.ConnectRequest(hello=greeting))
    return peer.receive()


def step(number: int, agents: int = 2) -> pb.ConnectRequest:
    decisions = pb.DecisionSteps(
        agent_ids=np.arange(agents, dtype=np.int32).tobytes(),
        rewards=np.ones(agents, np.float32).tobytes(),
        observations=[array_to_tensor(np.zeros((agents, 4), np.float32))],
    )
    part = pb.BehaviorStep(behavior=SPEC.name, decisions=decisions)
    return pb.ConnectRequest(step=pb.Step(step_id=number, behaviors=[part]))


def play(peer: Stream, steps: int, first: int = 1) -> None:
    for number in range(first, first + steps):
        peer.send(step(number))
        answer = peer.receive()
        assert answer.actions.step_id == number
        assert len(answer.actions.behaviors[0].discrete) == 8


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_a_simulator_plays(front: GatewayThread, collectors: Learner, relay: bool) -> None:
    assignment = join(where(front), RUN, token=TOKEN, relay=relay).assignment
    assert assignment.relay is relay
    assert assignment.address == ("" if relay else collectors.endpoints[0].websocket)

    with stream(assignment.address or where(front), assignment.ticket) as peer:
        assert hello(peer, assignment.ticket).welcome.run_id == RUN
        play(peer, 60)  # more than a round: the learner's weights change on the way
    collectors.wait_for(SimulatorStarted)
    assert collectors.wait_for(SimulatorLeft).code == "left"


def test_a_collector_without_websockets_is_relayed_to(database: Database) -> None:
    with learner(ticket_key=KEY.encode()) as trainer, gateway_of(database) as gateway:
        add_run(database, trainer.endpoints[0].address, name="1", generation=0)
        assignment = join(where(gateway), RUN, token=TOKEN).assignment
        assert (assignment.relay, assignment.address) == (True, "")
        with database.read() as session:
            listed = session.execute(select(Simulator.number, Simulator.relayed)).all()
        assert listed == [(assignment.simulator_number, True)]
        with stream(where(gateway), assignment.ticket) as peer:
            hello(peer, assignment.ticket)
            play(peer, 3)


def test_a_browser_and_a_program_play_in_one_run(front: GatewayThread) -> None:
    """gRPC's simulators get gRPC's address, whatever others use."""
    direct = front.join(RUN, "two").assignment
    assert direct.address != join(where(front), RUN, token=TOKEN).assignment.address


def test_wrong_tickets_and_tokens_are_named(front: GatewayThread, collectors: Learner) -> None:
    with pytest.raises(Refused) as refused:
        join(where(front), RUN, token="wrong")
    assert (refused.value.status, refused.value.reason, refused.value.code) == (
        "UNAUTHENTICATED",
        "unauthenticated",
        4016,
    )
    with pytest.raises(Refused) as refused:
        join(where(front), "nobody", token=TOKEN)
    assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "run_not_found")

    with stream(where(front), "wrong") as peer, pytest.raises(Refused) as refused:
        peer.receive()
    assert refused.value.reason == "bad_ticket"
    endpoint: Endpoint = collectors.endpoints[0]
    assert endpoint.websocket is not None
    with stream(endpoint.websocket, "") as peer:
        assert hello(peer, "wrong").close.code == "bad_ticket"
    ticket = join(where(front), RUN, token=TOKEN).assignment.ticket
    with stream(endpoint.websocket, ticket) as peer:
        assert hello(peer, ticket).HasField("welcome")
    with stream(endpoint.websocket, ticket) as peer:  # it opens one session
        assert hello(peer, ticket).close.code == "ticket_expired"


def test_pages_of_others_are_refused_by_both(front: GatewayThread, collectors: Learner) -> None:
    with pytest.raises(Refused) as refused:
        join(where(front), RUN, token=TOKEN, origin="https://game.example")
    assert refused.value.reason == "foreign_origin"
    address = collectors.endpoints[0].websocket
    assert address is not None
    with stream(address, "", origin="https://game.example") as peer, pytest.raises(Refused) as refused:
        peer.receive()
    assert refused.value.reason == "foreign_origin"


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_mistakes_close_with_their_code(front: GatewayThread, relay: bool) -> None:
    for number, (mistake, code) in enumerate(
        [
            (b"\xff garbage", "malformed_message"),
            (bytes(150_000), "message_too_large"),
            (pb.ConnectRequest(hello=pb.Hello()).SerializeToString(), "unexpected_message"),
        ]
    ):
        assignment = join(where(front), RUN, f"s{number}", token=TOKEN, relay=relay).assignment
        with stream(assignment.address or where(front), assignment.ticket) as peer:
            hello(peer, assignment.ticket, f"s{number}")
            peer.socket.send(mistake)
            assert peer.receive().close.code == code


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_a_collector_that_dies_ends_the_socket_and_its_successor_takes_the_game(
    front: GatewayThread, collectors: Learner, database: Database, relay: bool
) -> None:
    assignment = join(where(front), RUN, token=TOKEN, relay=relay).assignment
    with stream(assignment.address or where(front), assignment.ticket) as peer:
        hello(peer, assignment.ticket)
        play(peer, 3)
        os.kill(pids_of(collectors.pool)[0], signal.SIGKILL)
        with pytest.raises(Refused if relay else ConnectionClosed) as ended:
            play(peer, 1000, first=4)
        if relay:
            assert ended.value.reason == "collector_lost"
    collectors.wait_for(CollectorDied)
    again = collectors.wait_for(Endpoint)
    assert again.websocket is not None
    assert again.generation == 1


def test_a_relayed_game_whose_token_is_revoked_is_told(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_watcher, "LOOK_SECONDS", 0.2)
    with EchoCollector() as collector, gateway_of(database) as gateway:
        add_run(database, collector.address)
        token = made(database)
        assignment = join(where(gateway), "catch", token=token).assignment
        assert assignment.relay
        with stream(where(gateway), assignment.ticket) as peer:
            peer.socket.send(b"any bytes")
            assert message_of(peer.socket) == b"any bytes"
            revoke(database, token)
            with pytest.raises(Refused) as refused:
                message_of(peer.socket)
    assert (refused.value.reason, refused.value.code) == ("token_refused", 4016)


def test_a_gateway_that_stops_asks_relayed_games_to_join_again(database: Database) -> None:
    with EchoCollector() as collector, gateway_of(database) as gateway:
        add_run(database, collector.address)
        ticket = join(where(gateway), "catch", token=TOKEN).assignment.ticket
        with stream(where(gateway), ticket) as peer:
            peer.socket.send(b"")
            message_of(peer.socket)
            stopping = threading.Thread(target=gateway.stop)
            stopping.start()
            close = peer.receive().close
        stopping.join()
    assert (close.code, close.rejoin) == ("collector_closing", True)


def test_over_tls_both_speak_it(database: Database) -> None:
    named = {name: str(file) for name, file in SERVED.items()}
    trust = ssl.create_default_context(cafile=SERVED["tls_certificate"])
    with (
        learner(ticket_key=KEY.encode(), websocket_origins=(), advertise_host="localhost", **named) as trainer,
        gateway_of(database, **SERVED) as gateway,
    ):
        endpoint = trainer.endpoints[0]
        add_run(database, endpoint.address, name="1", generation=0, websocket=endpoint.websocket)
        assignment = join(where(gateway, "localhost"), RUN, token=TOKEN, tls=trust).assignment
        assert assignment.tls
        with stream(assignment.address, assignment.ticket, tls=trust) as peer:
            hello(peer, assignment.ticket)
            play(peer, 3)


def test_a_port_that_is_taken_is_named(database: Database) -> None:
    async def begin() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = GatewaySettings(port=0, websocket_port=taken.getsockname()[1])
            await start(settings, Placement(database))

    with pytest.raises(CannotStart, match="LUDUS_GATEWAY__WEBSOCKET_PORT"):
        asyncio.run(begin())


@pytest.mark.parametrize("origins", ["game.example", "https://game.example/path", "https://a.example,b", "https://u@h"])
def test_origins_are_checked(origins: str) -> None:
    with pytest.raises(ValidationError, match="is no origin; write"):
        GatewaySettings(websocket_origins=origins)
    listed = GatewaySettings(websocket_origins="https://a.example, null,http://b:8000")
    assert listed.origins == ("https://a.example", "null", "http://b:8000")
