"""A whole stack that speaks TLS, or mTLS, everywhere, and whose simulators reach it through the gateway alone."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from ludus.adapters.gymnasium import EnvironmentSimulation
from ludus.client import Client
from ludus.protocol.tls import ClientTls
from ludus.sdk import CannotConnect
from ludus.sdk.connection import ConnectionSummary, SimulatorConnection
from ludus.sdk.join import Target
from tests.e2e.stack import LudusUp, cartpole, wait_for_step
from tests.ludus.protocol.test_tls import CERTIFICATE, OURS, PRIVATE
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

TOKEN = "boss"


@pytest.fixture(params=[pytest.param(False, id="tls", marks=pytest.mark.slow), pytest.param(True, id="mtls")])
def tls(request: pytest.FixtureRequest) -> ClientTls:
    """What clients have: the authority, and a certificate where one is wanted."""
    return OURS if request.param else ClientTls(CERTIFICATE)


@pytest.fixture
def stack(tmp_path: Path, tls: ClientTls) -> Iterator[LudusUp]:
    served = {"TLS_CERTIFICATE": CERTIFICATE, "TLS_KEY": PRIVATE}
    served |= {} if tls.certificate is None else {"TLS_CLIENT_CA": CERTIFICATE}
    listening = {f"LUDUS_{part}__{name}": str(file) for part in ("API", "GATEWAY") for name, file in served.items()}
    up = LudusUp(
        tmp_path / "home",
        LUDUS_API__TOKEN=TOKEN,
        LUDUS_GATEWAY__REQUIRE_TOKEN="true",
        LUDUS_GATEWAY__TLS_CA=str(CERTIFICATE),
        **listening,
    )
    yield up
    up.stop()


class Relayed:
    """A simulator that only the gateway can be reached by, in a thread."""

    def __init__(self, stack: LudusUp, run: str, token: str, tls: ClientTls) -> None:
        target = Target(
            stack.gateway, run, token, ca_file=tls.ca_file, client_certificate=tls.certificate, client_key=tls.key
        )
        game = EnvironmentSimulation([gymnasium.make("CartPole-v1") for _ in range(4)], "CartPole")
        self._dialer = SimulatorConnection(game, target)
        self._dialer.join_client.relay = True
        self.session_id = target.session_id
        self.outcome: ConnectionSummary | CannotConnect | None = None
        self.thread = threading.Thread(target=self._play, daemon=True)
        self.thread.start()

    def _play(self) -> None:
        try:
            self.outcome = asyncio.run(self._dialer.play())
        except CannotConnect as error:
            self.outcome = error


@pytest.mark.long
def test_a_run_is_trained_by_relayed_simulators_until_their_tokens_are_revoked(stack: LudusUp, tls: ClientTls) -> None:
    with Client(stack.api, TOKEN, tls=tls) as client:
        run = client.runs.create(cartpole())
        tokens = [client.tokens.create_for_simulators(run.id) for _ in range(2)]
        loyal, revoked = (Relayed(stack, run.id, str(token.token), tls) for token in tokens)

        def both_play() -> bool:
            connected = {each.session_id: each.relayed for each in client.simulators.list(run.id, "connected")}
            return connected == {loyal.session_id: True, revoked.session_id: True}

        eventually(both_play, "both are connected, through the gateway")
        wait_for_step(client, run, 600)

        began = time.monotonic()
        client.tokens.revoke(tokens[1].id)
        revoked.thread.join(10)
        took = time.monotonic() - began

        assert isinstance(revoked.outcome, CannotConnect), revoked.outcome
        assert "The token was revoked" in str(revoked.outcome)
        assert took < 10
        wait_for_step(client, run, client.runs.get(run.id).step + 600)
        client.runs.stop(run.id)
        assert client.runs.wait(run.id, timeout=40).state == "SUCCEEDED"
        loyal.thread.join(20)
        assert isinstance(loyal.outcome, ConnectionSummary)
        assert loyal.outcome.finished
