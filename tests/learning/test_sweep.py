"""A real sweep on the embedded stack: CartPole, learning rates x epochs x 5 seeds; the answer holds beyond the seed.

make learn ARGS='-k sweep'
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.config.presets import read_preset
from tests.e2e.stack import LUDUS, LudusUp, environment

pytestmark = [pytest.mark.learning, pytest.mark.hours, pytest.mark.slow, pytest.mark.timeout(0)]

RATE = "behaviors.CartPole.hyperparameters.learning_rate"
EPOCHS = "behaviors.CartPole.hyperparameters.num_epoch"
STEPS = 25_000
BAR = 300.0
"""Interquartile mean of the best setting's mean returns over 5 seeds; by chance it is 22."""


def ludus(stack: LudusUp, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*LUDUS, *words, "--server", stack.api]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def test_a_sweep_finds_the_rate_that_learns_and_compare_says_so(tmp_path: Path) -> None:
    config: dict[str, Any] = yaml.safe_load(read_preset("cartpole"))
    config["behaviors"]["CartPole"] |= {"max_steps": STEPS}
    experiment = {
        "name": "cartpole-sweep",
        "config": config,
        "parameters": {RATE: {"values": [1e-5, 1e-4, 1e-3]}, EPOCHS: {"values": [2, 8]}},
        "sampler": "grid",
        "seeds": 5,
        "seed": 1,
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(experiment))
    stack = LudusUp(tmp_path / "home")
    try:
        created = ludus(stack, "experiment", "create", str(tmp_path / "sweep.yaml"))
        assert created.returncode == 0, created.stderr
        game = ("--game", "gymnasium:CartPole-v1", "--envs", "8", "--gateway", stack.gateway)
        played = ludus(stack, "experiment", "play", "cartpole-sweep", *game)
        assert played.returncode == 0, played.stderr
        with stack.client() as client:
            trials = sorted(client.experiments.trials("cartpole-sweep"), key=lambda trial: trial.value or 0.0)
        found = f"cartpole-sweep/{trials[0].number}"
        compared = ludus(stack, "compare", f"experiment:{found}", "experiment:cartpole-sweep", "--require", "better")
    finally:
        stack.stop()

    table = [(trial.parameters[RATE], trial.parameters[EPOCHS], trial.value, len(trial.runs)) for trial in trials]
    (tmp_path / "table.txt").write_text("\n".join([*map(str, table), compared.stdout]))
    assert [trial.state for trial in trials] == ["COMPLETE"] * 6, table
    assert all(runs == 5 for *_, runs in table), table
    assert table[-1][0] == 1e-3, table
    assert table[-1][2] is not None
    assert table[-1][2] >= BAR, table
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert compared.stdout.startswith("B is better"), compared.stdout
