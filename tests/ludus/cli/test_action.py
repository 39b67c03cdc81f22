"""The composite GitHub Action: its own shell commands, read from its file.

They run against a server whose trainer does as told, and, in the long tests, against an embedded stack that trains.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
import yaml

from tests.e2e.stack import LudusUp, environment
from tests.e2e.test_board_game import CONFIG as BOARD_GAME
from tests.e2e.test_board_game import TICTACTOE
from tests.server.app.world import World
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]
ACTION = ROOT / ".github/actions/train/action.yml"
WORKFLOW = ROOT / ".github/workflows/example-train.yml"
EXPRESSION = re.compile(r"\$\{\{ *([^}]+?) *\}\}")


def action() -> dict[str, Any]:
    return dict(yaml.safe_load(ACTION.read_text()))


def shell_steps() -> list[dict[str, Any]]:
    return [step for step in action()["runs"]["steps"] if "run" in step]


class Runner:
    """As much of GitHub's runner as the action needs: expressions, conditions, outputs, one bash for each step."""

    def __init__(self, folder: Path, context: Mapping[str, str], **inputs: str) -> None:
        declared = action()["inputs"]
        assert set(inputs) <= set(declared), "an input that the action does not have"
        assert {name for name, each in declared.items() if each.get("required")} <= set(inputs)
        self.folder = folder
        self.failed = ""
        self.summary = folder / "summary.md"
        self.values = {f"github.{name}": value for name, value in context.items()}
        defaults = {name: str(each.get("default", "")) for name, each in declared.items()}
        for name, value in {**defaults, **inputs}.items():
            self.values[f"inputs.{name}"] = self.expand(value)

    def expand(self, text: str) -> str:
        # A step that did not run has no outputs.
        return EXPRESSION.sub(
            lambda found: self.values.get(found[1], "") if found[1].startswith("steps.") else self.values[found[1]],
            text,
        )

    def wanted(self, condition: str | None) -> bool:
        if condition == "cancelled()":
            return False
        if condition == "always()":
            return True
        if condition == "failure()":
            return bool(self.failed)
        if self.failed or condition is None:
            return not self.failed
        name, value = re.fullmatch(r"(inputs\.[\w-]+) != '(\w*)'", condition).groups()  # type: ignore[union-attr]
        return self.values[name] != value

    def run(self) -> None:
        for number, step in enumerate(action()["runs"]["steps"]):
            if "run" not in step or not self.wanted(step.get("if")):
                continue
            script = self.folder / f"{number}.sh"
            script.write_text(step["run"])
            output = self.folder / f"{number}.out"
            output.touch()
            ended = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self.folder,
                env=environment(
                    **{name: self.expand(str(value)) for name, value in step.get("env", {}).items()},
                    PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                    GITHUB_OUTPUT=str(output),
                    GITHUB_STEP_SUMMARY=str(self.summary),
                ),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                self.values[f"steps.{step['id']}.outputs.{name}"] = value
            if ended.returncode:
                self.failed = f"{step['name']}: {ended.returncode}\n{ended.stdout}{ended.stderr}"

    def output(self, name: str) -> str:
        return self.expand(action()["outputs"][name]["value"])


def whole_stack(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that trains. All are run by one process, which starts one stack."""
    for mark in (pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("action"), pytest.mark.timeout(300)):
        test = mark(test)
    return test


CONTEXT = {
    "event.repository.name": "game",
    "repository": "studio/game",
    "action": "train",
    "run_id": "17",
    "run_attempt": "1",
}
CONFIG = """
behaviors:
  CartPole:
    hyperparameters: {batch_size: 32, buffer_size: 128}
    network_settings: {hidden_units: 8, num_layers: 1}
    time_horizon: 32
    summary_freq: 128
    max_steps: 100000
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    up = LudusUp(tmp_path_factory.mktemp("ludus"))
    yield up
    up.stop()


def inputs(stack: LudusUp, **others: str) -> dict[str, str]:
    given = {"server": stack.api, "gateway": stack.gateway, "config": "my game.yaml", "install": "no"}
    return {**given, "game": "gymnasium:CartPole-v1", "set": "behaviors.CartPole.max_steps=512", **others}


@whole_stack
def test_the_action_trains_judges_gates_and_keeps_the_model(stack: LudusUp, tmp_path: Path) -> None:
    (tmp_path / "my game.yaml").write_text(CONFIG)
    runner = Runner(tmp_path, CONTEXT, **inputs(stack, tags="ci\nbranch/main", require="step>=512\nlength>=1"))

    runner.run()

    assert not runner.failed
    with stack.client() as client:
        run = client.runs.get(runner.output("run"))
        assert (run.name, run.tags, run.state) == ("game-17-1", ("branch/main", "ci"), "SUCCEEDED")
        assert client.checkpoints.list(run.id)[0].id == runner.output("checkpoint")
    assert (tmp_path / "ludus/model/CartPole.onnx").stat().st_size > 0
    assert ET.parse(tmp_path / "ludus/wait.xml").getroot().get("tests") == "3"
    assert "| step\\>=512 | met |" in runner.summary.read_text()


@whole_stack
def test_the_gate_of_the_action_judges_the_policy_that_was_trained(stack: LudusUp, tmp_path: Path) -> None:
    section = BOARD_GAME["behaviors"]["tictactoe"] | {"self_play": {"save_steps": 256, "team_change": 512}}  # type: ignore[index]
    (tmp_path / "my game.yaml").write_text(yaml.safe_dump({"behaviors": {"tictactoe": section}}))
    given = inputs(stack, game=TICTACTOE, count="2", set="behaviors.tictactoe.max_steps=512")
    first = Runner(tmp_path, {**CONTEXT, "run_id": "18"}, **given)
    first.run()
    assert not first.failed
    with stack.client() as client:
        client.aliases.set("present", first.output("checkpoint"))

    gate = {"gate-against": "present", "promote": "present", "gate-options": "--elo1=5\n--max-games=4"}
    second = Runner(tmp_path, {**CONTEXT, "run_id": "19"}, **{**given, **gate})
    second.run()

    assert second.failed.startswith("Let its policy play against the present one: 9"), "four games decide nothing"
    report = ET.parse(tmp_path / "ludus/gate.xml").getroot()
    assert [each.get("type") for each in report.iter("failure")] == ["undecided"]
    assert "ludus gate" in second.summary.read_text()
    with stack.client() as client:
        assert client.aliases.get("present").checkpoint_id == first.output("checkpoint"), "nothing is promoted"


@contextmanager
def trained(world: World, name: str, scratch: Path) -> Iterator[None]:
    """Have a trainer take the run of this name, reach a reward of 20 and save a model."""

    def train() -> None:
        runs = eventually(lambda: world.http.get("/v1/runs", params={"filter": f"name = {name}"}).json()["runs"])
        trainer = world.claim(runs[0]["id"]).start()
        trainer.measure("Environment/Cumulative Reward", [20.0])
        trainer.save(512, {"CartPole.onnx": b"a model"}, scratch)
        trainer.finish()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def told(world: World, **others: str) -> dict[str, str]:
    return {"server": world.server, "config": "my game.yaml", "install": "no", **others}


def test_the_action_launches_waits_judges_and_keeps_the_model(world: World, tmp_path: Path) -> None:
    (tmp_path / "my game.yaml").write_text(CONFIG)
    context = {**CONTEXT, "run_id": "1"}
    runner = Runner(tmp_path, context, **told(world, tags="ci\nbranch/main", require="reward>=20\nreward<475"))

    with trained(world, "game-1-1", tmp_path):
        runner.run()

    assert not runner.failed
    run = world.http.get(f"/v1/runs/{runner.output('run')}").json()
    assert (run["name"], run["tags"], run["state"]) == ("game-1-1", ["branch/main", "ci"], "SUCCEEDED")
    (checkpoint,) = world.http.get(f"/v1/runs/{run['id']}/checkpoints").json()["checkpoints"]
    assert runner.output("checkpoint") == checkpoint["id"]
    assert (tmp_path / "ludus/model/CartPole.onnx").read_bytes() == b"a model"
    assert ET.parse(tmp_path / "ludus/wait.xml").getroot().get("tests") == "3"
    assert "| reward\\>=20 | met |" in runner.summary.read_text()


@pytest.mark.long
def test_a_requirement_that_is_not_met_fails_the_action_and_leaves_its_report(world: World, tmp_path: Path) -> None:
    (tmp_path / "my game.yaml").write_text(CONFIG)
    runner = Runner(tmp_path, {**CONTEXT, "run_id": "2"}, **told(world, require="reward>=475"))

    with trained(world, "game-2-1", tmp_path):
        runner.run()

    assert runner.failed.startswith("Wait for its end: 6")
    assert ET.parse(tmp_path / "ludus/wait.xml").getroot().get("failures") == "1"
    assert "**not met**" in runner.summary.read_text()
    assert (tmp_path / "ludus/model/CartPole.onnx").read_bytes() == b"a model", "of a red job, too"


@pytest.mark.long
def test_a_launch_that_is_repeated_makes_no_second_run(world: World, tmp_path: Path) -> None:
    (tmp_path / "my game.yaml").write_text(CONFIG)
    context = {**CONTEXT, "run_id": "3"}
    runner = Runner(tmp_path, context, **told(world, timeout="1s"))
    again = Runner(tmp_path, context, **told(world, timeout="1s"))

    runner.run()
    again.run()

    assert runner.failed.startswith("Wait for its end: 7")
    assert runner.output("run") == again.output("run")


def recipe() -> str:
    """Return the script for other systems, from its page."""
    (script,) = re.findall(r"```sh\n(# train\.sh\n.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    return str(script)


def start_recipe(world: World, folder: Path, pipeline: str) -> subprocess.Popen[str]:
    (folder / "connect_four.yaml").write_text(CONFIG)
    (folder / "train.sh").write_text(recipe())
    return subprocess.Popen(
        ["sh", "train.sh"],
        cwd=folder,
        env=environment(
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            LUDUS_SERVER=world.server,
            LUDUS_GATEWAY="127.0.0.1:9",
            PIPELINE=pipeline,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
def test_the_recipe_for_other_systems_judges_and_keeps_the_model(world: World, tmp_path: Path) -> None:
    with trained(world, "connect-four-7", tmp_path):
        job = start_recipe(world, tmp_path, "7")
        words, _ = job.communicate(timeout=100)

    assert job.returncode == 11, words  # a game of one player has no Elo
    assert (tmp_path / "model/CartPole.onnx").read_bytes() == b"a model"
    assert ET.parse(tmp_path / "ludus.xml").getroot().get("errors") == "1"
    eventually(lambda: not [process for process in psutil.process_iter() if runs_in(process, tmp_path)], "the end")


def runs_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except psutil.Error:  # it has ended meanwhile, or belongs to somebody else
        return False


def test_a_cancelled_job_of_the_recipe_cancels_its_run(world: World, tmp_path: Path) -> None:
    job = start_recipe(world, tmp_path, "8")
    eventually(lambda: world.http.get("/v1/runs/connect-four-8").is_success)
    eventually((tmp_path / "ludus.xml").exists, "it waits")

    job.terminate()  # the shell alone, not its children
    job.communicate(timeout=100)

    assert job.returncode == 143
    assert world.http.get("/v1/runs/connect-four-8").json()["state"] == "CANCELLED"


def test_what_is_written_into_inputs_is_never_run(world: World, tmp_path: Path) -> None:
    evil = "\"; touch pwned; echo $(touch pwned) `touch pwned` '; touch pwned #"
    names = {name for name in action()["inputs"] if name not in {"server", "install"}}
    runner = Runner(tmp_path, CONTEXT, server=world.server, install="no", **dict.fromkeys(names, evil))

    runner.run()

    assert runner.failed.startswith("Launch the run: ")
    assert not list(tmp_path.rglob("pwned"))


def test_no_input_is_text_of_a_script() -> None:
    steps = shell_steps()

    assert len(steps) >= 6
    for step in steps:
        assert "${{" not in step["run"], step["name"]
        assert step["shell"] == "bash"


def test_simulators_of_the_action_have_the_token_of_the_input_where_they_have_none_of_their_own() -> None:
    playing = [step for step in shell_steps() if "LUDUS_SIMULATOR_SERVER" in step["env"]]

    assert len(playing) == 3
    for step in playing:
        assert step["env"]["LUDUS_TOKEN"] == "${{ inputs.token }}", step["name"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("step", shell_steps(), ids=lambda step: str(step["name"]))
def test_shellcheck_has_nothing_to_say_of_a_step(step: dict[str, Any]) -> None:
    declared = "".join(f"export {name}=x\n" for name in step.get("env", {}))

    found = subprocess.run(
        ["shellcheck", "--shell=bash", "-"], input=declared + step["run"], capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stdout


def test_the_example_workflow_uses_the_action_as_it_is() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    (step,) = [step for step in job["steps"] if "actions/train" in step.get("uses", "")]
    declared = action()["inputs"]

    assert (ROOT / step["uses"] / "action.yml").samefile(ACTION)
    assert set(step["with"]) <= set(declared)
    assert {name for name, each in declared.items() if each.get("required")} <= set(step["with"])
    assert (ROOT / step["with"]["config"]).exists()
