import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.cli.exits import INTERRUPTED, Exit
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World
from tests.waiting import eventually


@pytest.mark.long
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


def test_waiting_runs_are_shown_by_demand_with_the_reason_where_no_slot_serves_them(world: World, cli: Invoke) -> None:
    config = {"behaviors": {"CartPole": {}}, "resources": {"gpu": 7, "labels": ["cli"]}}
    world.create(config)

    shown = cli("queue", "--demand", "7;cli").stdout.splitlines()

    assert shown[0].split()[:3] == ["DEMAND", "RUNS", "STARTABLE"]
    assert shown[1].split()[:3] == ["7;cli", "1", "1"]
    assert "7;cli: No worker" in shown[2]
    assert as_json(cli("queue", "--demand", "7;cli", "--json"))["missing_slots"] == 1
    assert cli("queue", "--demand", "63").stdout == "No run waits for a worker.\n"


def test_an_unknown_pool_gets_a_sentence(cli: Invoke) -> None:
    refused = cli("queue", "--pool", "gpus")

    assert (refused.exit_code, "LUDUS_SCHEDULING__POOLS" in refused.stderr) == (1, True)


@pytest.fixture(scope="module")
def runs(world: World) -> list[str]:
    """Two runs: each has a connected simulator and one that left."""
    names = ["first", "second"]
    for name in names:
        trainer = world.claim(world.create(name=name)["id"]).start()
        for number, session_id in enumerate(("here", "gone")):
            trainer.ledger.simulators.connected(session_id, number=number, collector=0, label=f"{name}-{session_id}")
        trainer.ledger.simulators.left("gone", code="shape_mismatch", reason="obs_0 has another shape.", steps=12)
    return names


def labels(answer: list[dict[str, str]]) -> list[str]:
    return [each["label"] for each in answer]


def test_simulators_of_all_runs_are_listed_with_the_names_of_their_runs(cli: Invoke, runs: list[str]) -> None:
    shown = cli("simulator", "list", "--state", "connected").stdout.splitlines()

    assert shown[0].split()[:3] == ["RUN", "SESSION", "LABEL"]
    assert [line.split()[:3] for line in shown[1:]] == [[name, "here", f"{name}-here"] for name in reversed(runs)]


def test_simulators_are_listed_by_run_and_by_the_reason_why_they_left(cli: Invoke, runs: list[str]) -> None:
    of_one = as_json(cli("simulator", "list", "--run", "first", "--json"))
    by_code = as_json(cli("simulator", "list", "--filter", "leave_code = shape_mismatch", "--json"))

    assert sorted(labels(of_one)) == ["first-gone", "first-here"]
    assert sorted(labels(by_code)) == ["first-gone", "second-gone"]


def test_those_that_left_lately_are_listed_newest_first(cli: Invoke, runs: list[str]) -> None:
    lately = as_json(cli("simulator", "list", "--left-within", "10m", "--json"))

    assert labels(lately) == ["second-gone", "first-gone"]
    assert as_json(cli("simulator", "list", "--left-within", "0s", "--json")) == []
