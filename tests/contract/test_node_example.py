"""The example in JavaScript, which was written from proto/README.md alone, passes the compliance kit."""

import json
import shutil
from pathlib import Path

import pytest

from ludus.sdk.contract.kit import SCENARIOS, Scenario, try_client

NODE = Path(__file__).parents[2] / "examples" / "node"
SECONDS = 60


@pytest.mark.node
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_javascript_client(scenario: Scenario) -> None:
    node = shutil.which("node")
    assert node is not None
    assert (NODE / "node_modules").is_dir(), "run `npm ci` in examples/node first"

    verdict = try_client(scenario, [node, str(NODE / "catch.js")], SECONDS)

    assert not verdict.problems, "\n".join([verdict.sentence, *verdict.printed])


def test_the_examples_dependencies_are_exact() -> None:
    package = json.loads((NODE / "package.json").read_text())
    lock = json.loads((NODE / "package-lock.json").read_text())

    assert all(version[0].isdigit() for version in package["dependencies"].values())
    assert not any("resolved" in entry for entry in lock["packages"].values())
