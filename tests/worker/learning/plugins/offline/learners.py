"""Offline learners of small behaviors, with small networks."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ludus.config.plugins.offline import FinetuneConfig, OfflineConfig
from ludus.demonstrations import Demonstration, write
from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector
from worker.learning.build import Demonstrations, build_algorithm, build_demonstrated
from worker.learning.plugins.offline.iql import IQL
from worker.learning.plugins.offline.rebrac import ReBRAC

CPU = torch.device("cpu")
SPEC = make_spec(vector(1), continuous=1, name="Walker")


def acted(value: float = 0.5, reward: float = 1.0, *, lengths: tuple[int, ...] = (4, 4), endings: str) -> Demonstration:
    """Demonstrations in which every action and every reward is the same."""
    steps = sum(lengths)
    actions, rewards = np.full((steps, 1), value, np.float32), np.full(steps, reward, np.float32)
    return make_demonstration(SPEC, lengths, endings, continuous=actions, rewards=rewards)


def learner(
    folder: Path,
    shown: Demonstration,
    *,
    trainer: str = "offline",
    algorithm: str = "iql",
    gamma: float = 0.5,
    seed: int = 1,
    network: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> IQL | ReBRAC:
    """Return a new learner of a demonstration."""
    path = folder / "shown.npz"
    write(shown, path)
    document = {
        "trainer_type": trainer,
        "algorithm": algorithm,
        "demo_path": str(path),
        "hyperparameters": {"batch_size": 8, "learning_rate": 1e-3, **hyperparameters},
        "network_settings": {"hidden_units": 8, "num_layers": 1, **(network or {})},
        "reward_signals": {"extrinsic": {"gamma": gamma}},
    }
    if trainer == "offline":
        config = OfflineConfig.model_validate(document)
        built, _, _ = build_demonstrated(config, shown.spec.name, CPU, seed, Demonstrations({}))
    else:
        built = build_algorithm(FinetuneConfig.model_validate(document), shown.spec, CPU, seed, Demonstrations({}))
    assert isinstance(built, IQL | ReBRAC)
    return built


@torch.no_grad()
def fix(layer: nn.Linear, value: float) -> None:
    """Let a layer answer everything with one value."""
    layer.weight.zero_()
    layer.bias.fill_(value)
