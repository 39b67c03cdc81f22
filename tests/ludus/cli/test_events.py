"""`ludus events`: the events of all runs, until Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.cli.exits import INTERRUPTED, Exit
from tests.ludus.cli.conftest import Invoke
from tests.server.app.world import World
from tests.waiting import eventually


@pytest.mark.parametrize("as_json", [False, True])
def test_each_event_of_each_run_is_a_line_until_ctrl_c(world: World, tmp_path: Path, as_json: bool) -> None:
    command = [sys.executable, "-m", "ludus.cli", "events", *(["--json"] if as_json else [])]
    output = tmp_path / "output"
    before = world.services.streams.open
    with output.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, "LUDUS_SERVER": world.server}, stdout=file)
    eventually(lambda: world.services.streams.open > before, "it listens")

    first, second = world.create(name="one"), world.create(name="two")
    world.http.post(f"/v1/runs/{first['id']}:cancel")
    eventually(lambda: len(output.read_text().splitlines()) == 3, "all events are printed")
    process.send_signal(signal.SIGINT)

    assert process.wait(60) == INTERRUPTED
    lines = output.read_text().splitlines()
    if as_json:
        found = {(line["run_id"], line["seq"], line["type"]) for line in map(json.loads, lines)}
        assert found == {
            (first["id"], 1, "run_created"),
            (second["id"], 1, "run_created"),
            (first["id"], 2, "run_cancelled"),
        }
    else:
        assert {tuple(line.split()[1:3]) for line in lines} == {
            ("one", "run_created"),
            ("two", "run_created"),
            ("one", "run_cancelled"),
        }


def test_what_the_server_refuses_ends_it(cli: Invoke) -> None:
    result = cli("events", "--project", "no project")

    assert result.exit_code == Exit.REFUSED
    assert "project" in result.stderr
