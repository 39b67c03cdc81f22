"""Python games of one's own, of every kind, through a whole stack: trained, evaluated, and played by the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.cli.exits import Exit
from ludus.client import Client
from tests.e2e.stack import LudusUp, Player

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("stack")]

MAZES = "python:tests/toys/mazes.py"
SHORT: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 64, "buffer_size": 256},
    "network_settings": {"hidden_units": 16},
    "max_steps": 1024,
    "checkpoint_interval": 512,
    "keep_checkpoints": 10,
}


@pytest.mark.parametrize(
    ("kind", "behavior", "envs", "renamed"), [("Maze", "Labyrinth", 4, True), ("Crowd", "Walker", 1, False)]
)
def test_a_game_of_ones_own_is_trained_evaluated_and_played(
    stack: LudusUp,
    client: Client,
    play: Callable[..., Player],
    tmp_path: Path,
    kind: str,
    behavior: str,
    envs: int,
    renamed: bool,
) -> None:
    game = f"{MAZES}:{kind}"
    run = client.runs.create({"behaviors": {behavior: SHORT}}, name=f"own-{kind}")
    play(run.id, *(["--behavior", behavior] if renamed else []), game=game, environments=envs)
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"

    options = ["--game", game, "--gateway", stack.gateway, "--timeout", "60s", "--seed", "5", "--json"]
    options += ["--game-behavior", behavior] if renamed else []
    arguments = ["evaluate", f"own-{kind}/latest", "--episodes", "12", "--threshold", "-1000", *options]
    evaluated = CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": stack.api})
    model = client.checkpoints.download(run.id, "latest", f"{behavior}.onnx", tmp_path / "model.onnx")
    played = CliRunner().invoke(ludus, ["play", str(model), game, "--sample", "--episodes", "5", "--json"])

    assert evaluated.exit_code == Exit.OK, evaluated.output
    found = json.loads(evaluated.stdout)["result"]
    assert (found["verdict"], found["episodes"], found["seeded"]) == ("pass", 12, True)
    assert played.exit_code == Exit.OK, played.output
    assert json.loads(played.stdout)["summary"]["all"]["episodes"] == 5


def test_a_game_of_ones_own_for_two_passes_a_gate(stack: LudusUp, client: Client, play: Callable[..., Player]) -> None:
    run = client.runs.create({"behaviors": {"Race": SHORT}}, name="own-race")
    for team in (0, 1):
        play(run.id, "--scripted", f"{team}=random", game=f"{MAZES}:Race")
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"
    oldest = client.checkpoints.list(run.id)[-1].id

    options = [
        "--game",
        "tests.toys.mazes:Race",
        "--gateway",
        stack.gateway,
        "--timeout",
        "60s",
        "--seed",
        "4",
        "--json",
    ]
    arguments = ["gate", "own-race/latest", "--against", oldest, "--elo0=-1000", "--elo1=-500", *options]
    result = CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": stack.api})

    assert result.exit_code == Exit.OK, result.output
    found = json.loads(result.stdout)["result"]
    assert (found["verdict"], found["paired"]) == ("pass", True)
