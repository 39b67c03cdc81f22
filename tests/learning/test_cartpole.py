"""CartPole-v1, the first task of everybody: solved within 100,000 agent steps, by the median of three seeds."""

from pathlib import Path
from statistics import median

import pytest
import yaml

from benchmarks.alone import play, train
from server.training.presets import read_preset

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]

SOLVED = 475.0
"""Gymnasium's threshold for CartPole-v1."""


def test_the_median_of_three_seeds_solves_cartpole_within_100000_steps(tmp_path: Path) -> None:
    document = yaml.safe_load(read_preset("cartpole"))
    assert document["behaviors"]["CartPole"]["max_steps"] == 100_000

    returns = []
    for seed in (1, 2, 3):
        outcome = train({**document, "seed": seed}, tmp_path / str(seed), "CartPole-v1", environments=8)
        assert (outcome.outcome, outcome.step) == ("succeeded", 100_000)
        returns.append(play(outcome.folder / "CartPole.onnx", "CartPole-v1", episodes=20))

    assert median(returns) >= SOLVED, returns
