"""The example in JavaScript, which was written from proto/README.md alone, passes the compliance kit."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.contract.scenarios import SCENARIOS, Scenario
from tests.fakes import FakeServer

NODE = Path(__file__).parents[2] / "examples" / "node"
SECONDS = 60


@pytest.mark.node
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_javascript_client(scenario: Scenario) -> None:
    node = shutil.which("node")
    assert node is not None
    assert (NODE / "node_modules").is_dir(), "run `npm ci` in examples/node first"
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}

    with FakeServer(*scenario.scripts, join=scenario.join) as server:
        result = subprocess.run(
            [node, "catch.js", "--run", "contract", "--server", server.address],
            cwd=NODE,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    assert server.violations == [], result.stdout + result.stderr
    assert len(server.streams) == len(scenario.scripts)
    assert scenario.least_joins <= len(server.joins) <= scenario.most_joins
    assert (result.returncode == 0) is scenario.succeeds, result.stdout + result.stderr
    scenario.check(server)


def test_the_examples_dependencies_are_exact() -> None:
    package = json.loads((NODE / "package.json").read_text())
    lock = json.loads((NODE / "package-lock.json").read_text())

    assert all(version[0].isdigit() for version in package["dependencies"].values())
    assert not any("resolved" in entry for entry in lock["packages"].values())
