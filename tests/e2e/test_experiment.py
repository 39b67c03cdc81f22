"""A sweep on a whole stack: real runs, games that `ludus experiment play` starts, kills in the middle, `ludus tune`."""

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ludus.cli.exits import INTERRUPTED
from ludus.client import Client
from ludus.schemas import Experiment
from tests.e2e.stack import LUDUS, LudusUp, cartpole, environment
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("stack")]

RATE = "behaviors.CartPole.hyperparameters.learning_rate"
EPOCHS = "behaviors.CartPole.hyperparameters.num_epoch"
SECONDS = 240.0
GAME = ("--game", "gymnasium:CartPole-v1", "--envs", "4")


def sweep(name: str, **fields: Any) -> dict[str, Any]:
    """Return an experiment of two learning rates and two numbers of epochs."""
    return {
        "name": name,
        "config": {key: value for key, value in cartpole(max_steps=3000).items() if key != "seed"},
        "parameters": {RATE: {"values": [1e-5, 3e-3]}, EPOCHS: {"values": [1, 4]}},
        "sampler": "grid",
        **fields,
    }


def at(stack: LudusUp) -> tuple[str, ...]:
    return ("--server", stack.api, "--gateway", stack.gateway)


def has_ended(client: Client, name: str) -> Experiment | None:
    found = client.experiments.get(name)
    assert found.state != "FAILED", found.detail
    return found if found.state == "FINISHED" else None


def test_a_sweep_goes_on_over_kills_of_the_controller_the_worker_and_the_games(
    stack: LudusUp, client: Client, tmp_path: Path
) -> None:
    name = client.experiments.create(sweep("kills", seeds=2)).name
    command = [*LUDUS, "experiment", "play", name, *GAME, *at(stack)]
    with (tmp_path / "play.log").open("wb") as log:
        games = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    try:
        for victim in ("controller", "worker"):
            ended = sum(trial.state == "COMPLETE" for trial in client.experiments.trials(name))
            eventually(
                lambda done=ended: sum(bool(trial.runs) for trial in client.experiments.trials(name)) > done,
                "a trial that trains",
                SECONDS,
            )
            stack.children()[victim].kill()
        for simulator in stack.processes("ludus.cli.simulate_process"):
            simulator.kill()
        eventually(lambda: has_ended(client, name), "the end of the sweep", SECONDS)
    finally:
        games.terminate()
        code = games.wait(60)

    trials = list(client.experiments.trials(name))
    assert Counter((trial.parameters[RATE], trial.parameters[EPOCHS]) for trial in trials) == Counter(
        {(rate, epochs): 1 for rate in (1e-5, 3e-3) for epochs in (1, 4)}
    )
    assert [trial.state for trial in trials] == ["COMPLETE"] * 4
    runs = [run.run_id for trial in trials for run in trial.runs]
    assert len(set(runs)) == 8
    assert {run.name for run in client.runs.list(f'tags = "experiment:{name}"', limit=20)} == {
        f"kills-{trial}-{seed}" for trial in range(4) for seed in range(2)
    }
    best = client.experiments.get(name).best
    assert best is not None
    assert best.parameters[RATE] == 3e-3, "the rate of which anything is learned in 3,000 steps"
    assert code in {0, INTERRUPTED}, (tmp_path / "play.log").read_text()


def test_an_evaluation_is_the_objective_where_it_is_asked_for(stack: LudusUp, client: Client, tmp_path: Path) -> None:
    body = sweep("evaluated", objective={"evaluate": {"episodes": 4}})
    body["parameters"] = {RATE: {"values": [3e-3]}}
    client.experiments.create(body)

    played = subprocess.run(
        [*LUDUS, "experiment", "play", "evaluated", *GAME, *at(stack), "--timeout", "4m"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert played.returncode == 0, played.stderr
    (trial,) = client.experiments.trials("evaluated")
    (run,) = trial.runs
    assert run.assessment_id is not None
    assert trial.value == client.runs.result(run.assessment_id).mean


def test_tune_writes_a_configuration_that_a_run_takes(stack: LudusUp, client: Client, tmp_path: Path) -> None:
    file, best = tmp_path / "cartpole.yaml", tmp_path / "best.yaml"
    file.write_text(yaml.safe_dump(cartpole(max_steps=2000)))

    tuned = subprocess.run(
        [*LUDUS, "tune", str(file), "--runs", "3", *GAME, "--name", "tuned", "-o", str(best), *at(stack)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )

    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    assert f"{RATE}: 1e-05 to 0.003 (log)" in tuned.stdout, "what varies is said before it starts"
    assert "Best: trial " in tuned.stdout
    planned = client.runs.create(best.read_text(), name="as-tuned")
    found = client.experiments.get("tuned").best
    assert found is not None
    for path, value in found.parameters.items():
        node: Any = planned.config
        for key in path.split("."):
            node = node[key]
        assert node == value, path
    assert not [process for process in psutil.process_iter(["cmdline"]) if "tuned" in (process.info["cmdline"] or ())]


def test_a_tune_without_a_server_that_was_killed_goes_on_in_its_folder_and_keeps_every_trial(tmp_path: Path) -> None:
    file, home = tmp_path / "cartpole.yaml", tmp_path / "results/tuned/.ludus"
    file.write_text(yaml.safe_dump(cartpole(max_steps=2000)))
    command = [*LUDUS, "tune", str(file), "--name", "tuned", "--home", str(home), *GAME]
    output = tmp_path / "output.log"
    with output.open("wb") as log:
        killed = subprocess.Popen([*command, "--runs", "2"], env=environment(), stdout=log, stderr=log)
    eventually(
        lambda: "trial   0 COMPLETE" in output.read_text() or killed.poll(), "an end of the first trial", SECONDS
    )
    killed.kill()
    assert killed.wait() == -signal.SIGKILL, output.read_text()

    again = subprocess.run(
        [*command, "--resume"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )

    assert again.returncode == 0, output.read_text() + again.stdout + again.stderr
    ended = [line.split()[1:3] for line in again.stdout.splitlines() if line.startswith("trial ")]
    assert ended[0] == ["0", "COMPLETE"]
    assert [number for number, _ in ended] == ["0", "1"]
    assert yaml.safe_load((tmp_path / "tuned.yaml").read_text())["behaviors"]
    assert f"ludus up --home {home}" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--resume"], "--resume needs the --name"),
        (["--resume", "--name", "nobody"], "There is nothing to resume in results/nobody/.ludus"),
        (["--runs", "2", "--name", "../up"], "is no name of a folder"),
        ([], "tuning has no end of its own"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_a_server_starts(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    file = tmp_path / "cartpole.yaml"
    file.write_text(yaml.safe_dump(cartpole(max_steps=2000)))

    refused = subprocess.run(
        [*LUDUS, "tune", str(file), *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert not list(tmp_path.glob("results/*"))
