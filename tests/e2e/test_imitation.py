"""docs/demonstrations.md tells how an expert's episodes become a clone and a run with GAIL: its commands, as they stand
there, on a real stack."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.client import Client
from ludus.demonstrations import read
from tests.e2e.stack import LudusUp, cartpole, environment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "demonstrations.md").read_text()


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.xdist_group("stack")
def test_from_an_expert_to_its_clone_and_to_gail(stack: LudusUp, client: Client, tmp_path: Path) -> None:
    (script,) = re.findall(r"<!-- tested: imitation -->\n```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    clone, gail = (
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    )
    configs: dict[str, Any] = {"expert": cartpole(max_steps=2048), "clone": clone, "gail": gail}
    gail["behaviors"]["CartPole"].update(max_steps=2048, summary_freq=1000)  # a few minutes less
    gail["behaviors"]["CartPole"]["hyperparameters"] = {"buffer_size": 1024, "batch_size": 128}
    for name, config in configs.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))

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
    shown = read(tmp_path / "shown.npz")
    assert shown.pieces == shown.complete.sum() == 20
    (few,) = client.demonstrations.list("name = few")
    assert few.transitions == shown.pick_episodes(10, 1).every(20, 1).steps
    for name in configs:
        run = client.runs.wait(name, timeout=60)  # a simulator may end a moment before its run
        assert (run.state, run.stop_reason) == ("SUCCEEDED", "completed"), name
    (evaluations,) = client.metrics.series("clone", "Evaluation/Cumulative Reward")
    assert evaluations.steps == (1000, 2000), "each waited for the simulators"
    assert [metric for metric in client.metrics.list("gail") if metric.key == "Policy/GAIL Expert Estimate"]
