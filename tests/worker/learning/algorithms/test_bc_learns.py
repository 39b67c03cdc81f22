"""Imitation on ML-Agents' walk within ML-Agents' budget of 500 steps, from a `.demo` file, beside every trainer.

Its rewards are GAIL's alone, which cannot tell anything here: what is seen is the goal, and that is the same for the
expert and for anybody else. So what is learned is learned by cloning, against the noise of the trainer.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from ludus.demonstrations import write
from tests.toys.playing import TRAINERS, Arcade, Training
from tests.toys.walk import HYPERPARAMETERS, Walk, shown
from worker.learning.build import Demonstrations, build_algorithm

STEPS, BAR = 500, 0.9


def last_returns(folder: Path, trainer: str, *, cloning: bool, seed: int = 1, **game: bool) -> float:
    """Return the mean return of the last ten episodes of a training."""
    path = folder / "walk.demo"
    write(shown(**game), path)
    network = {"hidden_units": 32, "num_layers": 1}
    document: dict[str, Any] = {
        "trainer_type": trainer,
        "hyperparameters": HYPERPARAMETERS[trainer],
        "network_settings": network,
        "reward_signals": {"gail": {"demo_path": str(path), "network_settings": network}},
        "max_steps": STEPS,
    }
    if cloning:
        document["behavioral_cloning"] = {"demo_path": str(path), "steps": 1000}
    config = TRAINERS[trainer].model_validate(document)
    walk = Walk(seed=seed, **game)
    algorithm = build_algorithm(config, walk.spec, torch.device("cpu"), seed, Demonstrations({}))
    learning = Training(algorithm, Arcade(walk, config, algorithm.round_steps(), seed))
    returns: list[float] = []
    while learning.step < STEPS:
        learning.advance()
        returns += walk.returns
        walk.returns.clear()
    return fmean(returns[-10:])


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "discrete"),
    [
        ("ppo", True),
        ("poca", False),
        *(pytest.param(*cell, marks=pytest.mark.long) for cell in [("ppo", False), ("poca", True)]),
        *(pytest.param("sac", discrete, marks=pytest.mark.long) for discrete in (True, False)),
    ],
)
def test_the_walk_is_learnt_within_500_steps(trainer: str, discrete: bool, tmp_path: Path) -> None:
    assert last_returns(tmp_path, trainer, cloning=True, discrete=discrete) >= BAR


@pytest.mark.long  # in `make test` pictures are imitated in tests.worker.test_variants
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_it_is_learnt_from_pictures_too(discrete: bool, tmp_path: Path) -> None:
    assert last_returns(tmp_path, "ppo", cloning=True, discrete=discrete, picture=True) >= BAR


def test_without_cloning_it_is_not(tmp_path: Path) -> None:
    assert last_returns(tmp_path, "ppo", cloning=False, discrete=True) < 0.5
