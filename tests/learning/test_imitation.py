"""Imitation on a task where it cannot pass by accident: every episode of the pendulum has 200 steps.

On CartPole a discriminator that likes everything is a useful teacher, because only good episodes go on; a policy learns
from any expert, even from one that always plays one action. Here a policy that imitates a dummy must stay as bad as it.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import CloneConfig
from ludus.demonstrations import write
from tests.toys.pendulum import Pendulum, let_go, shown_by, swing_up
from tests.toys.playing import training
from worker.learning.build import Demonstrations, build_demonstrated
from worker.learning.networks.actor import Actor

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(900)]

SEEDS = (1, 2, 3)
EPISODES = 10
"""Of the expert, for GAIL: 2,000 decisions."""
CLONED_EPISODES = 50
"""For cloning, which is not told what to do where the expert never was: from 10 it reaches about -600."""
BAR, CONTROL = -300.0, -900.0
"""The expert's mean return is -142, that of doing nothing -1,193."""
UPDATES = 90
"""Of 3,200 steps each: 288,000 steps."""
NETWORK: dict[str, Any] = {"hidden_units": 64, "num_layers": 2, "activation": "tanh", "normalize": True}


def score(actor: Actor) -> float:
    """Return the mean return of 50 episodes without chance in the actions."""
    game = Pendulum(agents=50, seed=1000)
    game.deal()
    total = np.zeros(50)
    for _ in range(game.length):
        actions, _, _ = actor.deterministic([torch.from_numpy(game.see()[0])], None)
        total += game.evaluate(actions.numpy(), np.zeros((50, 0)))
    return float(total.mean())


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Path]:
    def written(player: Any, episodes: int = EPISODES) -> Path:
        path = tmp_path / f"{player.__name__}.npz"
        write(shown_by(player, episodes=episodes, seed=7), path)
        return path

    return written


Shown = Callable[..., Path]


def gail(path: Path, seed: int) -> float:
    signal = {
        "gamma": 0.95,
        "use_actions": True,
        "learning_rate": 3e-4,
        "demo_path": str(path),
        "network_settings": NETWORK,
    }
    learning = training(
        Pendulum(agents=16, seed=seed + 100),
        seed=seed,
        network=NETWORK,
        signals={"gail": signal},
        time_horizon=200,
        batch_size=256,
        buffer_size=3200,
        learning_rate=1e-3,
        num_epoch=5,
        beta=0.0,
        epsilon_schedule="constant",
        max_grad_norm=0.5,
    )
    learning.run(UPDATES)
    return score(learning.algorithm.actor)


def cloned(path: Path, seed: int) -> float:
    config = CloneConfig.model_validate(
        {
            "trainer_type": "clone",
            "demo_path": str(path),
            "network_settings": NETWORK,
            "hyperparameters": {"batch_size": 128, "learning_rate": 1e-3},
        }
    )
    cloning, _, _ = build_demonstrated(config, "Pendulum", torch.device("cpu"), seed, Demonstrations({}))
    cloning.iterate(5000)
    return score(cloning.actor)


@pytest.mark.hours
def test_gail_learns_from_an_expert_to_swing_up(shown: Shown) -> None:
    scores = [gail(shown(swing_up), seed) for seed in SEEDS]

    assert median(scores) >= BAR, scores


@pytest.mark.hours
def test_gail_learns_nothing_from_a_dummy(shown: Shown) -> None:
    scores = [gail(shown(let_go), seed) for seed in SEEDS]

    assert max(scores) <= CONTROL, scores


def test_cloning_an_expert_swings_up_and_cloning_a_dummy_does_not(shown: Shown) -> None:
    good = [cloned(shown(swing_up, CLONED_EPISODES), seed) for seed in SEEDS]
    bad = [cloned(shown(let_go, CLONED_EPISODES), seed) for seed in SEEDS]

    assert median(good) >= BAR, good
    assert max(bad) <= CONTROL, bad


@pytest.fixture
def example() -> Iterator[Any]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "imitation"))
    yield import_module("imitation")
    sys.path.pop(0)


def test_the_experiment_of_the_book_comes_out_as_in_the_book(example: Any, tmp_path: Path) -> None:
    """The expert balances; its clone, from 30 decisions, is better than chance (22) and worse; GAIL comes up to it."""
    returns = example.experiment(tmp_path, seed=0, say=lambda _: None)

    ends = {name: fmean(values[-10:]) for name, values in returns.items()}
    assert ends["expert"] >= 180
    assert 60 <= ends["clone"] <= ends["gail"]
    assert ends["gail"] >= 180
