"""Commands and calls that wait: their deadlines, outages of the server meanwhile, and the causes that they name."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import yaml
from click.testing import CliRunner, Result

from ludus.cli import ludus
from ludus.cli.exits import INTERRUPTED, Exit
from ludus.client import Client, NotSaved, ServerUnreachable, WaitTimedOut
from ludus.schemas.states import RunState, StopReason
from server.runs.scheduling.order import Obstacle
from server.runs.scheduling.repository import WaitingRuns
from tests.ludus.cli.conftest import Invoke, printed
from tests.ludus.cli.test_reports import outcomes
from tests.ports import free_port
from tests.server.app.world import CARTPOLE, World, build_services, serving
from tests.server.runs.test_health import ZERO
from tests.waiting import eventually

REWARD = "Environment/Cumulative Reward"
SPEED = "Performance/Agent Steps per Second"
SLACK_SECONDS = 15.0
"""For a busy machine; far below the half minute of a request that has no deadline."""


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server that accepts connections and never answers: stopped, or cut off by a firewall."""
    for module in ("client.backoff", "cli.client"):
        monkeypatch.setattr(f"ludus.{module}.FIRST_ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def run_alone(*arguments: str, server: str) -> Result:
    return CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": server})


WITH_TIMEOUT = [
    ["run", "wait", "nightly", "--timeout", "0.3s"],
    ["run", "wait", "nightly", "--timeout", "0.3s", "--keep-waiting", "--require", "reward>=1"],
    ["run", "pause", "nightly", "--wait", "--timeout", "0.3s"],
    ["run", "checkpoint", "nightly", "--timeout", "0.3s"],
    ["run", "stop", "nightly", "--wait", "--timeout", "0.3s"],
    ["run", "cancel", "nightly", "--wait", "--timeout", "0.3s"],
    ["gate", "nightly/latest", "--timeout", "0.3s"],
    ["evaluate", "nightly/latest", "--timeout", "0.3s"],
    ["ladder", "recompute", "main", "--timeout", "0.3s"],
    ["worker", "drain", "box-1", "--wait", "--timeout", "0.3s"],
]


@pytest.mark.parametrize("arguments", WITH_TIMEOUT, ids=" ".join)
def test_a_command_with_a_deadline_ends_there_although_the_server_accepts_and_never_answers(
    silent: str, arguments: list[str]
) -> None:
    began = time.monotonic()

    ended = run_alone(*arguments, server=silent)

    assert ended.exit_code == Exit.UNREACHABLE, ended.output
    assert time.monotonic() - began < SLACK_SECONDS


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://ludus.invalid"])
def test_a_deadline_holds_where_nothing_listens(address: str) -> None:
    began = time.monotonic()

    with Client(address) as client, pytest.raises(ServerUnreachable):
        client.runs.wait("nightly", timeout=0.5)

    assert time.monotonic() - began < SLACK_SECONDS


@contextmanager
def serving_at(home: Path, port: int = 0) -> Iterator[World]:
    """Serve the data of a folder, again and again on the same port."""
    services = build_services(home)
    with serving(services, port) as server, httpx2.Client(base_url=server, timeout=30) as http:
        yield World(services, server, http)


def test_a_run_is_created_as_soon_as_the_server_answers_if_a_deadline_allows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, server, ended = tmp_path / "cartpole.yaml", f"http://127.0.0.1:{free_port()}", list[Result]()
    config.write_text(yaml.safe_dump(CARTPOLE))
    create = ("run", "create", str(config), "--wait", "--timeout", "60s")
    command = threading.Thread(target=lambda: ended.append(run_alone(*create, server=server)))
    command.start()
    eventually(lambda: "trying again" in caplog.text)
    with serving_at(tmp_path / "home", int(server.rpartition(":")[2])) as world:
        (run,) = eventually(lambda: world.http.get("/v1/runs").json()["runs"])
        world.claim(run["id"]).start().finish(RunState.FAILED, reason=StopReason.DIVERGED)
        command.join(60)

    assert ended[0].exit_code == Exit.RUN_FAILED, ended[0].output


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a deadline there is hardly any patience, so that a deadline alone explains what outlasts an outage."""
    monkeypatch.setattr("ludus.client.backoff.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("ludus.client.backoff.OUTAGE_FACTOR", 1.0)
    monkeypatch.setattr("ludus.client.runs.LONG_POLL_SECONDS", 1.0)


def ended(client: Client, run: str, seen: Callable[[], None]) -> str:
    return client.runs.wait(run, timeout=60, watch=lambda _: seen()).state


def ended_unless_stalled(client: Client, run: str, seen: Callable[[], None]) -> str:
    return client.runs.wait(run, timeout=60, unless_stalled=True, watch=lambda _: seen()).state


def saved(client: Client, run: str, seen: Callable[[], None]) -> str:
    seen()
    try:
        return client.checkpoints.save(run, timeout=60)
    except NotSaved as error:
        return str(error)


@pytest.mark.parametrize("call", [ended, ended_unless_stalled, saved], ids=lambda call: str(call.__name__))
def test_a_call_with_a_deadline_outlasts_an_outage(
    tmp_path: Path, call: Callable[[Client, str, Callable[[], None]], str]
) -> None:
    answers: list[str] = []
    seen = threading.Event()
    with serving_at(tmp_path) as world:
        trainer = world.claim(world.create()["id"]).start()
        client = Client(world.server)
        waiting = threading.Thread(target=lambda: answers.append(call(client, trainer.run_id, seen.set)))
        waiting.start()
        assert seen.wait(60)
        if call is saved:
            eventually(lambda: world.http.get(f"/v1/runs/{trainer.run_id}/checkpoint_requests/1").is_success)
    time.sleep(0.5)  # allow: sleep, because the outage has to be longer than the patience without a deadline
    trainer.finish(RunState.CANCELLED)

    with client, serving_at(tmp_path, int(world.server.rpartition(":")[2])):
        waiting.join(60)

    assert answers
    assert (answers[0] == "CANCELLED") == (call is not saved)


@pytest.mark.long
def test_a_deadline_that_passes_in_an_outage_hands_out_the_run_as_it_was_known(tmp_path: Path) -> None:
    seen = threading.Event()
    caught: list[WaitTimedOut] = []

    def wait() -> None:
        with pytest.raises(WaitTimedOut) as error:
            client.runs.wait(run, timeout=3, unless_stalled=True, watch=lambda _: seen.set())
        caught.append(error.value)

    with serving_at(tmp_path) as world:
        client = Client(world.server)
        run = world.create()["id"]
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert seen.wait(60)
    with client:
        waiting.join(60)

    assert caught[0].run.state == "QUEUED"
    assert "has not answered" in str(caught[0])


def test_a_time_out_names_what_the_run_waits_for_its_bottleneck_and_the_last_words_of_its_games(
    cli: Invoke, world: World, tmp_path: Path
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    for number in (1, 2):
        trainer.ledger.event("simulator_problem", "level 7 is missing", level="warning", data={})
        trainer.ledger.event("simulator_left", f"Simulator {number} left: level 7 is missing", level="warning", data={})
    junit, summary = tmp_path / "wait.xml", tmp_path / "summary.md"

    result = cli("run", "wait", trainer.run_id, "--timeout", "0.2s", "--junit", str(junit), "--summary", str(summary))

    assert result.exit_code == Exit.TIMED_OUT
    said = "Event (2 times): Simulator 2 left: level 7 is missing"
    assert said in result.stderr
    assert result.stderr.count("level 7 is missing") == 1
    assert said in summary.read_text().replace("\\", "")
    assert said in junit.read_text()
    assert f"{world.server}/ui/runs/{trainer.run_id}" in junit.read_text()


def test_a_waiting_run_says_in_the_report_what_it_waits_for(cli: Invoke, world: World, tmp_path: Path) -> None:
    run = world.create()["id"]
    with world.services.database.write() as session:
        WaitingRuns(session).inform(run, Obstacle("no_worker_serves", "No worker is there: start one."))
    junit = tmp_path / "wait.xml"

    cli("run", "wait", run, "--timeout", "0.2s", "--junit", str(junit))

    assert junit.read_text().count("It waits for: No worker is there: start one.") == 1


@pytest.mark.parametrize("requirement", ["rewrd>=490", "Goals>=3", "Pole:reward>=1"])
def test_a_required_metric_that_does_not_exist_ends_the_wait_at_the_first_summary(
    cli: Invoke, world: World, tmp_path: Path, requirement: str
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure(SPEED, [900.0])
    trainer.measure(REWARD, [20.0])
    junit = tmp_path / "wait.xml"

    result = cli("run", "wait", trainer.run_id, "--require", requirement, "--timeout", "60s", "--junit", str(junit))

    assert result.exit_code == Exit.NO_METRIC
    assert "it continues" in result.stderr
    assert ("did you mean 'reward'?" in result.stderr) == requirement.startswith("rewrd")
    assert outcomes(junit)[trainer.run_id][0] == "error"
    assert outcomes(junit)[requirement][0] == "skipped"


def test_a_metric_of_the_trainer_that_is_not_there_yet_is_said_once_and_waited_for(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure(SPEED, [900.0])

    def go_on() -> None:
        eventually(lambda: "not to be judged yet" in printed("stderr"), "it is said")
        trainer.measure(REWARD, [20.0])
        trainer.finish()

    thread = threading.Thread(target=go_on)
    thread.start()
    result = cli("run", "wait", trainer.run_id, "--require", "reward>=20", "--timeout", "60s")
    thread.join()

    assert result.exit_code == Exit.OK, result.output
    assert result.stderr.count("not to be judged yet") == 1


@pytest.mark.long
@pytest.mark.parametrize(("command", "number"), [("wait", signal.SIGINT), ("create", signal.SIGTERM)])
def test_an_interrupted_command_cancels_its_run_where_it_was_told_to(
    world: World, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    name = f"cancelled-{command}-{number.name}"
    if command == "wait":
        world.create(name=name)
        arguments = ["wait", name]
    else:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(CARTPOLE))
        arguments = ["create", str(tmp_path / "config.yaml"), "--name", name, "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus.cli", "run", *arguments, "--require", "reward>=1", "--cancel-on-interrupt"],
        env={**os.environ, "LUDUS_SERVER": world.server},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: world.http.get(f"/v1/runs/{name}").is_success)
    trainer = world.claim(world.http.get(f"/v1/runs/{name}").json()["id"]).start()
    trainer.measure(SPEED, [900.0])
    assert process.stderr is not None
    assert "not to be judged yet" in process.stderr.readline()  # it waits
    process.send_signal(number)
    _, words = process.communicate(timeout=60)

    assert process.returncode == INTERRUPTED
    assert f"{trainer.run_id} is RUNNING, cancel asked for" in words


def test_calls_with_one_idempotency_key_create_one_run(cli: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(CARTPOLE))
    options = ["run", "create", str(config), "--idempotency-key", "job-17"]

    first, again = cli(*options), cli(*options)

    assert first.exit_code == again.exit_code == Exit.OK
    assert first.stdout == again.stdout


@pytest.mark.parametrize(("option", "code"), [([], Exit.OK), (["--fail-on-warning"], Exit.WARNED)])
def test_findings_about_the_learning_are_reported_and_fail_the_command_where_it_was_told_so(
    cli: Invoke, world: World, tmp_path: Path, option: list[str], code: Exit
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure(REWARD, [0.0])
    trainer.ledger.health.publish([ZERO])
    trainer.finish()
    junit = tmp_path / "wait.xml"

    result = cli("run", "wait", trainer.run_id, "--require", "reward>=0", "--junit", str(junit), *option)

    assert result.exit_code == code, result.output
    assert "SUCCEEDED, with warnings" in result.stderr
    assert "Warning: CartPole: All 654 episodes had a return of exactly 0. Let the game give a reward." in result.stderr
    assert outcomes(junit)[trainer.run_id][0] == ("failure" if option else "passed")
    assert outcomes(junit)["reward>=0"][0] == "passed"
    assert junit.read_text().count("All 654 episodes") == 1
