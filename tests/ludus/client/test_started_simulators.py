"""Simulators that a program starts on its machine."""

import pytest

from ludus.client import Client
from ludus.protocol.credentials import CLIENT_TOKEN
from ludus.protocol.options import GATEWAY_VARIABLE
from ludus.sdk.contract.scripted import ScriptedServer, finish_after
from tests.waiting import eventually

CARTPOLE = "gymnasium:CartPole-v1"


@pytest.mark.long
def test_simulators_join_with_the_clients_token_and_end_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLIENT_TOKEN, raising=False)
    lines: list[str] = []
    with ScriptedServer(finish_after(5), token="secret") as server, Client(token="secret") as client:
        monkeypatch.setenv(GATEWAY_VARIABLE, server.address)

        simulators = client.simulators.start("cartpole", CARTPOLE, envs=2, show=lines.append)
        eventually(lambda: simulators.exit_code is not None, "they have ended")

        assert simulators.end() == 0, lines
        assert server.violations == []
        assert [join.run for join in server.joins] == ["cartpole"]
    assert any("connected to run" in line for line in simulators.last_lines)
    assert [line.strip() for line in lines] == [*simulators.last_lines]


def test_simulators_that_cannot_play_say_why() -> None:
    with (
        Client() as client,
        client.simulators.start("any", "gymnasium:NoSuchGame-v0", gateway="127.0.0.1:1") as started,
    ):
        eventually(lambda: started.exit_code is not None, "they have ended")

        assert started.exit_code != 0
        assert "NoSuchGame" in " ".join(started.last_lines)


def test_simulators_end_at_once_with_a_block_that_an_error_ends() -> None:
    with Client() as client:
        with (
            pytest.raises(KeyboardInterrupt),
            client.simulators.start("any", CARTPOLE, gateway="127.0.0.1:1") as started,
        ):
            raise KeyboardInterrupt

        assert started.exit_code is not None


@pytest.mark.parametrize(
    ("server", "gateway"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:7070"),
        ("https://ludus.example.org", "ludus.example.org:7070"),
        ("http://[::1]:8080", "[::1]:7070"),
    ],
)
def test_the_gateway_is_beside_the_server_unless_the_environment_names_it(
    server: str, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(GATEWAY_VARIABLE, raising=False)
    with Client(server) as client:
        assert client.gateway == gateway

        monkeypatch.setenv(GATEWAY_VARIABLE, "games.example.org:443")
        assert client.gateway == "games.example.org:443"
