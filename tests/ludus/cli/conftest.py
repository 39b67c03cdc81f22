"""The command line against a real server."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ludus.cli import ludus
from tests.server.app.world import World

Invoke = Callable[..., Result]

LOOKS = (
    "ludus.client.client.SAVE_POLL_SECONDS",
    "ludus.client.runs.PAUSED_POLL_SECONDS",
    "ludus.cli.gate.LOOK_SECONDS",
    "ludus.cli.follow.REFRESH_SECONDS",
    "ludus.cli.run_data.REFRESH_SECONDS",
    "ludus.cli.learn_run.POLL_SECONDS",
)
"""How often commands look at what they wait for: users have time, tests don't."""


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in LOOKS:
        monkeypatch.setattr(pause, 0.1)


@pytest.fixture
def cli(world: World) -> Invoke:
    """Run a command and return its result; a traceback is never an answer."""

    def invoke(*arguments: str, **options: Any) -> Result:
        result = CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": world.server, "TZ": "UTC"}, **options)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


DOCUMENT: dict[str, Any] = {
    "behaviors": {"CartPole": {"trainer_type": "ppo", "max_steps": 1000, "summary_freq": 100}},
    "env_settings": {"seed": 3},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration file in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(DOCUMENT))
    return tmp_path


def printed(stream: str = "stdout") -> str:
    """Return what the command that runs now has printed so far; for threads beside it."""
    output = getattr(getattr(sys, stream), "buffer", None)
    return output.getvalue().decode() if hasattr(output, "getvalue") else ""


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
