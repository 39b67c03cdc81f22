"""What a stack writes while it trains: every line of every process is JSON and says whom it is about."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.client import Client
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]


def read_lines(text: str) -> list[dict[str, Any]]:
    """Parse every line; one that is no JSON object with the common fields fails."""
    found = []
    for line in text.splitlines():
        record = json.loads(line)
        assert {"timestamp", "level", "event", "process"} <= set(record), line
        found.append(record)
    return found


@pytest.mark.faults
def test_every_line_is_json_and_a_crashed_attempts_log_is_kept_and_served(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    run = client.runs.create(cartpole(max_steps=20_000), name="talkative")
    play(run.id)
    wait_for_step(client, run, 1500)
    for trainer in stack.processes("worker.trainer"):
        if trainer.num_threads() > 4:  # not the one that waits warm
            trainer.kill()
    eventually(lambda: client.runs.get(run.id).attempt == 2 or None, "a second attempt")
    ended = client.runs.wait(run.id, timeout=90)
    assert ended.state == "SUCCEEDED", ended.stop_detail

    logs = {log.attempt: log for log in client.logs.list(run.id)}
    assert set(logs) == {1, 2}
    for attempt in (1, 2):
        arguments = ["run", "logs", run.id, "--attempt", str(attempt), "--follow", "--server", stack.api]
        printed = CliRunner().invoke(ludus, arguments).stdout
        lines = read_lines(printed)
        assert lines, f"attempt {attempt} has written nothing"
        assert {line["process"] for line in lines} <= {"trainer", "collector"}
        for line in lines:
            assert (line["run_id"], line["attempt"]) == (run.id, attempt), line
            assert line["worker_id"]

    of_role = {path.stem: read_lines(path.read_text()) for path in Path(stack.home / "logs").glob("*.log")}
    assert {"api", "gateway", "controller", "worker"} <= set(of_role)
    started = [line for line in of_role["worker"] if line["event"] == "trainer_started" and line["run_id"] == run.id]
    assert [line["attempt"] for line in started] == [1, 2]
    assert all(line["worker_id"] for line in started)
    assigned = [
        line for line in of_role["gateway"] if line["event"] == "simulator_assigned" and line["run_id"] == run.id
    ]
    assert {"attempt", "session_id", "number"} <= set(assigned[0])
    asked = [line for line in of_role["api"] if run.id in line.get("path", "")]
    assert asked
    assert {line["run"] for line in asked} == {run.id}
