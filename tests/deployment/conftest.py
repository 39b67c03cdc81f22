"""Two machines on one network, and `ludus up` on one of them, set up for others as docs/security.md says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.client import Client
from tests.deployment.composition import ROOT
from tests.deployment.hosts import Host, Process, Switch, skip_without_namespaces
from tests.e2e.stack import LUDUS, environment
from tests.waiting import eventually

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


@dataclass(frozen=True)
class Up:
    """`ludus up` on the host `server`."""

    process: Process
    token: str
    """Of scope admin."""
    folder: Path

    def client(self) -> Client:
        """Return a client, for a function that runs on a host."""
        return Client("http://server:8080", self.token)

    def start(self, host: Host, log: str, *words: str) -> Process:
        """Start `ludus` on a host, with the token for simulators."""
        return host.start([*LUDUS, *words], environment(LUDUS_SIMULATOR_TOKEN=self.token), self.folder / log, cwd=ROOT)


@pytest.fixture
def up(hosts: dict[str, Host], tmp_path: Path) -> Up:
    """Start it; it ends with its host."""
    home = tmp_path / "home"
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    typed = ["bash", "-ec", commands_of_the_page(home)]
    process = hosts["server"].start(typed, environment(**path), tmp_path / "up.log", cwd=tmp_path)

    def is_ready() -> bool:
        assert process.poll() is None, (tmp_path / "up.log").read_text()
        return "ready: " in (tmp_path / "up.log").read_text()

    eventually(is_ready, "ludus up is ready", 60)
    create = [*LUDUS, "admin", "create-token", "root", "--home", str(home)]
    token = subprocess.run(create, env=environment(), check=True, capture_output=True, text=True).stdout.strip()
    return Up(process, token, tmp_path)
