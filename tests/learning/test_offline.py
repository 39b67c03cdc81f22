"""Offline learning on data of our own making: SAC learns the pendulum, and what it plays on the way is recorded.

`random` is played by uniform actions, `medium` by the policy when its return has first passed `MEDIUM`, `expert` by the
one at the end; policies act as in training, with their noise. All episodes have 200 steps, so that lengths tell
nothing. Cloning imitates a mixture as it is; IQL and ReBRAC know from the recorded rewards what was good in it.

    .venv/bin/python -m tests.learning.test_offline     # prints the table of docs/offline.md, in half an hour
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import TRAINERS
from ludus.demonstrations import Demonstration, merge, write
from ludus.protocol.batches import Array
from tests.learning.test_imitation import score
from tests.toys.pendulum import Pendulum, shown_by
from tests.toys.playing import training
from worker.learning.build import Demonstrations, build_demonstrated
from worker.learning.networks.actor import Actor

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(1800)]

SEEDS = (1, 2, 3)
EPISODES = 50
"""Of each part of a mixture: 10,000 steps."""
MEDIUM = -700.0
"""Doing nothing returns -1,193, an expert about -145."""
GRADIENT_STEPS = 10_000
NETWORK: dict[str, Any] = {"hidden_units": 64, "num_layers": 2, "activation": "relu", "normalize": True}
MIXTURES: dict[str, tuple[str, ...]] = {
    "random": ("random",),
    "medium": ("medium",),
    "expert": ("expert",),
    "random + medium": ("random", "medium"),
    "random + expert": ("random", "expert"),
    "random + medium + expert": ("random", "medium", "expert"),
}
LEARNERS: dict[str, dict[str, Any]] = {
    "cloning": {"trainer_type": "clone", "hyperparameters": {"batch_size": 256, "learning_rate": 1e-3}},
    "iql": {
        "trainer_type": "offline",
        "algorithm": "iql",
        "hyperparameters": {"learning_rate": 1e-3, "expectile": 0.9, "temperature": 3.0},
    },
    "rebrac": {
        "trainer_type": "offline",
        "algorithm": "rebrac",
        "hyperparameters": {"learning_rate": 1e-3, "beta1": 0.1, "beta2": 0.01},
    },
}
Player = Callable[[Array], Array]


def acting(actor: Actor, seed: int) -> Player:
    """Return a player of the present policy of SAC, with its noise."""
    flat, generator = actor.flatten().copy(), torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def play(observations: Array) -> Array:
        actor.load_flat(flat)
        head, _ = actor(actor.encode([torch.from_numpy(observations)]))
        parts = actor.parts(head)
        noise = torch.randn(parts.means.shape, generator=generator)
        actions: Array = (parts.means + parts.log_sigmas.exp() * noise).tanh().numpy()
        return actions

    return play


@cache
def parts() -> dict[str, Demonstration]:
    """Return the recorded parts by name: 50 episodes each, the same at each call."""
    rng = np.random.default_rng(5)
    learning = training(
        Pendulum(agents=8, seed=3),
        trainer="sac",
        network=NETWORK | {"normalize": False},
        batch_size=256,
        buffer_size=50_000,
        learning_rate=1e-3,
        steps_per_update=2,
        init_entcoef=0.5,
    )
    learning.arcade.steps = 200
    actor = learning.algorithm.actor
    shown = {
        "random": shown_by(lambda seen: rng.uniform(-1, 1, (len(seen), 1)).astype(np.float32), episodes=50, seed=7)
    }
    for _ in range(200):
        learning.advance()
        if "medium" not in shown and score(actor) >= MEDIUM:
            shown["medium"] = shown_by(acting(actor, 1), episodes=EPISODES, seed=8)
    shown["expert"] = shown_by(acting(actor, 2), episodes=EPISODES, seed=9)
    return shown


def mixed(mixture: str) -> Demonstration:
    return merge([parts()[name] for name in MIXTURES[mixture]])


def learned(learner: str, mixture: str, seed: int, folder: Path, **hyperparameters: Any) -> float:
    """Return the return of the policy that a learner makes of a mixture."""
    write(mixed(mixture), folder / "shown.npz")
    section = LEARNERS[learner]
    config = TRAINERS[section["trainer_type"]].model_validate(
        {
            **section,
            "hyperparameters": {**section["hyperparameters"], **hyperparameters},
            "demo_path": str(folder / "shown.npz"),
            "network_settings": NETWORK,
        }
    )
    algorithm, _, _ = build_demonstrated(config, "Pendulum", torch.device("cpu"), seed, Demonstrations({}))
    for _ in range(GRADIENT_STEPS // 1000):
        algorithm.iterate(1000)
    return score(algorithm.actor)
