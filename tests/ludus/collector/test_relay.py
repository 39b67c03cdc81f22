"""Simulators and edge collectors that reach a run over TLS and mTLS, relayed too: real certificates all the way."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ludus.collector.edge import EdgeCollector
from ludus.collector.messages import SimulatorStarted
from ludus.sdk import CannotConnect
from ludus.sdk.connection import SimulatorConnection
from ludus.sdk.join import Target
from server.gateway import relay
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.protocol.test_tls import CERTIFICATE, MUTUAL, OTHER, PRIVATE, SERVED
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run
from tests.server.gateway.conftest import database as gateway_database
from tests.toys.catch import Catch
from worker.collectors.acting import POLICIES
from worker.collectors.events import RoundCollected

database = gateway_database
RUN = "run-1"
"""The one of `learner`."""


@pytest.fixture(params=[False, True], ids=["tls", "mtls"])
def files(request: pytest.FixtureRequest) -> dict[str, Path]:
    return MUTUAL if request.param else SERVED


@pytest.fixture
def collectors(files: dict[str, Path], database: Database) -> Iterator[Learner]:
    named = {name: str(file) for name, file in files.items()}
    with learner(**named, ticket_key=KEY.encode(), advertise_host="localhost") as trainer:
        add_run(database, trainer.endpoints[0].address, name="1", generation=0)
        yield trainer


def gateway(database: Database, **settings: Any) -> GatewayThread:
    return GatewayThread(
        GatewaySettings(port=0, token=SecretStr(TOKEN), ticket_key=SecretStr(KEY), **settings), database
    )


def dialer(
    front: GatewayThread, files: dict[str, Path], *, relay: bool = True, patience: float = 30.0
) -> SimulatorConnection:
    """Return a simulator that knows the authority, and shows a certificate where one is wanted."""
    mutual = "tls_client_ca" in files
    target = Target(
        front.address.replace("127.0.0.1", "localhost"),
        RUN,
        TOKEN,
        ca_file=CERTIFICATE,
        client_certificate=CERTIFICATE if mutual else None,
        client_key=PRIVATE if mutual else None,
        connect_timeout_seconds=patience,
    )
    made = SimulatorConnection(Catch(), target)
    made.join_client.relay = relay
    return made


async def play_until_a_round(dialer: SimulatorConnection, trainer: Learner) -> None:
    playing = asyncio.create_task(dialer.play())
    collecting = asyncio.create_task(asyncio.to_thread(trainer.wait_for, RoundCollected))
    await asyncio.wait({playing, collecting}, return_when=asyncio.FIRST_COMPLETED)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    await collecting


@pytest.mark.parametrize("relayed", [True, pytest.param(False, marks=pytest.mark.long)], ids=["relayed", "directly"])
def test_a_simulator_learns_over_tls(
    collectors: Learner, database: Database, files: dict[str, Path], relayed: bool
) -> None:
    with gateway(database, **files, tls_ca=CERTIFICATE) as front:
        asyncio.run(play_until_a_round(dialer(front, files, relay=relayed), collectors))


def test_a_gateway_relays_to_a_collector_whose_certificate_is_for_a_name_and_not_for_its_address(
    database: Database, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "REACH_SECONDS", 1.0)
    named = {name: str(file) for name, file in files.items()}
    pod = "127.0.0.2"  # the certificate is for localhost and 127.0.0.1
    with learner(**named, ticket_key=KEY.encode(), bind_host=pod, advertise_host=pod) as trainer:
        add_run(database, trainer.endpoints[0].address, name="1", generation=0)
        with gateway(database, **files, tls_ca=CERTIFICATE) as front, pytest.raises(CannotConnect, match="TLS_CA"):
            asyncio.run(asyncio.wait_for(dialer(front, files, patience=0.5).play(), 30))
        with gateway(database, **files, tls_ca=CERTIFICATE, tls_name="localhost") as front:
            asyncio.run(play_until_a_round(dialer(front, files), trainer))


def test_an_edge_collector_collects_over_tls_and_its_games_need_neither_certificate_nor_token(
    database: Database, files: dict[str, Path]
) -> None:
    named = {name: str(file) for name, file in files.items()}

    async def collect(front: GatewayThread, trainer: Learner) -> None:
        edge = EdgeCollector(dialer(front, files).join_client.target, POLICIES, lambda *_: None)
        address = f"127.0.0.1:{await edge.listen()}"
        collecting = asyncio.create_task(edge.run())
        game = SimulatorConnection(Catch(), Target(address, RUN, ""))
        await play_until_a_round(game, trainer)
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        await edge.close()

    with (
        learner(count=1, edge_places=1, **named, ticket_key=KEY.encode(), advertise_host="localhost") as trainer,
        gateway(database, **files, tls_ca=CERTIFICATE) as front,
    ):
        add_run(database, name="1", edge=trainer.endpoints[0].address)
        asyncio.run(collect(front, trainer))


def test_a_gateway_that_does_not_trust_a_collector_says_so(
    collectors: Learner, database: Database, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "REACH_SECONDS", 1.0)
    with gateway(database, **files, tls_ca=OTHER) as front, pytest.raises(CannotConnect, match="TLS_CA") as refused:
        asyncio.run(asyncio.wait_for(dialer(front, files, patience=0.5).play(), 30))

    assert refused.value.code == "collector_unreachable"
    assert collectors.endpoints[0].address in str(refused.value)


@pytest.mark.parametrize(
    ("relayed", "code"), [(True, "collector_lost"), (False, "connection_lost")], ids=["relayed", "directly"]
)
def test_a_killed_collector_is_told_as_what_it_is_and_not_as_a_matter_of_tls(
    collectors: Learner, database: Database, files: dict[str, Path], relayed: bool, code: str
) -> None:
    async def play(dialer: SimulatorConnection) -> None:
        playing = asyncio.create_task(dialer.play())
        await asyncio.to_thread(collectors.wait_for, SimulatorStarted)
        for child in collectors.pool.children:
            assert child.process is not None
            os.kill(child.process.pid, signal.SIGKILL)
        await asyncio.wait_for(playing, 20)

    with gateway(database, **files, tls_ca=CERTIFICATE) as front, pytest.raises(CannotConnect) as told:
        asyncio.run(play(dialer(front, files, relay=relayed, patience=0.0)))

    assert told.value.code == code
    assert "was lost" in str(told.value)
    assert "may have ended" in str(told.value)
    assert "TLS" not in str(told.value)
