"""`ludus up` that was set up for other machines with the commands of docs/security.md trains a game on one of them."""

from pathlib import Path

import pytest

from tests.deployment.conftest import GAMES, Up
from tests.deployment.hosts import Host
from tests.e2e.stack import cartpole

pytestmark = pytest.mark.deployment


def test_a_stack_of_one_command_that_listens_for_other_machines_trains_a_game_on_one(
    hosts: dict[str, Host], up: Up, tmp_path: Path
) -> None:
    def created() -> str:
        with up.client() as client:
            return client.runs.create(cartpole(2000)).id

    run = hosts["games"].do(created)
    game = ["simulate", "gymnasium:CartPole-v1", "--run", run, "--count", "1", "--server", "server:7070"]
    game += ["--collect", "there"]  # otherwise it is an edge collector: tests/deployment/test_edge.py
    playing = up.start(hosts["games"], "game.log", *game)

    assert playing.wait(60) == 0, (tmp_path / "game.log").read_text()

    def ended() -> tuple[str, list[tuple[bool, str]]]:
        with up.client() as client:
            simulators = [(each.relayed, each.peer.split(":")[-2]) for each in client.simulators.list(run)]
            return client.runs.get(run).state, simulators

    assert hosts["games"].do(ended) == ("SUCCEEDED", [(False, GAMES)])
    up.process.terminate()
    assert up.process.wait(60) == 0
