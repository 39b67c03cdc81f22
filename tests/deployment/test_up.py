"""`ludus up` that was set up for other machines with the commands of docs/security.md trains a game on one of them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ludus.client import Client
from tests.deployment.composition import ROOT
from tests.deployment.hosts import Host, Switch, skip_without_namespaces
from tests.e2e.stack import LUDUS, cartpole, environment
from tests.waiting import eventually

pytestmark = pytest.mark.deployment

SERVER, GAMES = "10.78.0.1", "10.78.0.2"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Host]]:
    """Two machines on one network."""
    skip_without_namespaces()
    names = tmp_path / "hosts"
    names.write_text(f"127.0.0.1 localhost\n{SERVER} server\n{GAMES} games\n")
    nowhere = tmp_path / "resolv.conf"
    nowhere.write_text("nameserver 127.0.0.1\n")
    with ExitStack() as over:
        switch = Switch()
        over.callback(switch.close)
        made = {}
        for name, address in (("server", SERVER), ("games", GAMES)):
            made[name] = Host(name, {"hosts": names, "resolv.conf": nowhere})
            over.callback(made[name].close)
            switch.connect(made[name], address)
        yield made


def commands_of_the_page(home: Path) -> str:
    """Return what docs/security.md tells to type, with another folder."""
    page = (ROOT / "docs" / "security.md").read_text()
    found = re.search(r"^### Other machines\n.*?^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found
    return found[1].replace("/srv/ludus", str(home))


def test_a_stack_of_one_command_that_listens_for_other_machines_trains_a_game_on_one(
    hosts: dict[str, Host], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    typed = ["bash", "-ec", commands_of_the_page(home)]
    up = hosts["server"].start(typed, environment(**path), tmp_path / "up.log", cwd=tmp_path)

    def is_ready() -> bool:
        assert up.poll() is None, (tmp_path / "up.log").read_text()
        return "ready: " in (tmp_path / "up.log").read_text()

    eventually(is_ready, "ludus up is ready", 60)
    create = [*LUDUS, "admin", "create-token", "root", "--home", str(home)]
    token = subprocess.run(create, env=environment(), check=True, capture_output=True, text=True).stdout.strip()

    def created() -> str:
        with Client("http://server:8080", token) as client:
            return client.runs.create(cartpole(2000)).id

    run = hosts["games"].do(created)
    game = ["simulate", "gymnasium:CartPole-v1", "--run", run, "--count", "1", "--server", "server:7070"]
    playing = hosts["games"].start(
        [*LUDUS, *game], environment(LUDUS_SIMULATOR_TOKEN=token), tmp_path / "game.log", cwd=ROOT
    )

    assert playing.wait(60) == 0, (tmp_path / "game.log").read_text()

    def ended() -> tuple[str, list[tuple[bool, str]]]:
        with Client("http://server:8080", token) as client:
            simulators = [(each.relayed, each.peer.split(":")[-2]) for each in client.simulators.list(run)]
            return client.runs.get(run).state, simulators

    assert hosts["games"].do(ended) == ("SUCCEEDED", [(False, GAMES)])
    up.terminate()
    assert up.wait(60) == 0
