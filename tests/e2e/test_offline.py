"""docs/offline.md leads from what a run has played to a policy, and on with simulators; a killed trainer goes on."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.client import Client
from ludus.demonstrations import read, write
from tests.e2e.stack import LudusUp, environment, wait_for_step
from tests.e2e.test_faults import the
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "offline.md").read_text()
SHORT = (
    "--set behaviors.Pendulum.max_steps=600 --set behaviors.Pendulum.summary_freq=200 "
    "--set behaviors.Pendulum.network_settings.hidden_units=32"
)


def offline(demonstration: str, **section: Any) -> dict[str, Any]:
    behavior = {
        "trainer_type": "offline",
        "demonstrations": [demonstration],
        "hyperparameters": {"batch_size": 16},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 200,
        "summary_freq": 50,
        "checkpoint_interval": 100,
        "evaluation_episodes": 0,
        **section,
    }
    return {"behaviors": {"Walker": behavior}, "seed": 1}


@pytest.fixture
def demonstration(client: Client, tmp_path: Path) -> str:
    """The id of an uploaded demonstration with branches."""
    write(make_demonstration(make_spec(vector(2), branches=(3,)), lengths=(20, 20)), tmp_path / "shown.npz")
    return client.demonstrations.upload(tmp_path / "shown.npz", name="shown").id


def test_an_offline_run_learns_without_a_simulator(client: Client, demonstration: str) -> None:
    ended = client.runs.wait(client.runs.create(offline(demonstration)).id, timeout=60)

    assert (ended.state, ended.stop_reason, ended.step) == ("SUCCEEDED", "completed", 200), ended.stop_detail
    measured = {metric.key for metric in client.metrics.list(ended.id)}
    assert {"Losses/Expectile Loss", "Policy/Advantage Weight", "Policy/Extrinsic Value"} <= measured
    assert "Walker.onnx" in [file.name for file in client.checkpoints.get(ended.id).files]


@pytest.mark.long
@pytest.mark.parametrize(
    ("rewards", "section", "sentence"),
    [
        (0.0, {}, "behaviors.Walker.demonstrations: the rewards of all 40 steps are 0"),
        (1.0, {"algorithm": "rebrac"}, "algorithm rebrac learns continuous actions only; take algorithm iql"),
    ],
    ids=["no rewards", "branches"],
)
def test_what_cannot_be_learned_fails_the_run_with_a_sentence(
    client: Client, tmp_path: Path, rewards: float, section: dict[str, Any], sentence: str
) -> None:
    shown = make_demonstration(make_spec(vector(2), branches=(3,)), lengths=(20, 20))
    write(replace(shown, rewards=np.full(40, rewards, np.float32)), tmp_path / "shown.npz")
    uploaded = client.demonstrations.upload(tmp_path / "shown.npz").id

    ended = client.runs.wait(client.runs.create(offline(uploaded, **section)).id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("FAILED", "invalid_config")
    assert sentence in (ended.stop_detail or "")


@pytest.mark.long
def test_a_killed_trainer_goes_on_from_the_checkpoint(stack: LudusUp, client: Client, demonstration: str) -> None:
    run = client.runs.create(offline(demonstration, max_steps=40_000, checkpoint_interval=500))
    wait_for_step(client, run, 1000)

    the(stack.processes("worker.trainer")).kill()
    eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt")

    _, second = sorted(client.runs.attempts(run.id), key=lambda attempt: attempt.number)
    assert second.resumed_from is not None
    wait_for_step(client, run, 1500)
    client.runs.stop(run.id)
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"


@pytest.mark.long
def test_the_page_leads_from_what_was_played_to_a_policy_that_is_fine_tuned(
    stack: LudusUp, client: Client, tmp_path: Path
) -> None:
    scripts = re.findall(r"<!-- tested: \w+ -->\n```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    script = "".join(scripts).replace(" --set behaviors.Pendulum.max_steps=6000", "")
    script = script.replace("ludus run create -", f"ludus run create - {SHORT}")
    script = script.replace("--name offline", "--name offline --set behaviors.Pendulum.evaluation_interval=300")

    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment(
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            LUDUS_SERVER=stack.api,
            LUDUS_SIMULATOR_SERVER=stack.gateway,
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    for name in ("played", "offline", "finetune"):
        run = client.runs.wait(name, timeout=60)
        assert (run.state, run.stop_reason) == ("SUCCEEDED", "completed"), (name, run.stop_detail)
    shown = read(tmp_path / "played.npz")
    assert shown.truncated.sum() >= 2, "the pendulum's time limit"
    assert not shown.terminated.any()
    (evaluations,) = client.metrics.series("offline", "Evaluation/Cumulative Reward")
    assert evaluations.steps == (300, 600)
    began = [event for event in client.events.list("finetune") if event.type == "behavior_initialized"]
    assert began[0].data["step"] == 600
    assert [metric for metric in client.metrics.list("finetune") if metric.key == "Policy/Advantage Weight"]
