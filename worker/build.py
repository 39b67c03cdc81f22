"""The only place where a variant of a configuration decides which class is built.

The dispatch is on the type and ends in `assert_never`: forget an arm and mypy names the missing class.
"""

from typing import assert_never

import torch

from ludus.spec import BehaviorSpec
from server.training.config import BehaviorConfig, PPOConfig
from worker.algorithms.ppo import PPO


def build_algorithm(config: BehaviorConfig, spec: BehaviorSpec, device: torch.device, seed: int) -> PPO:
    """Return the algorithm that trains one behavior, new.

    Raise `UnsupportedSpec` where there is no network for what the behavior sees or does. Equal arguments give equal
    weights and equal updates.
    """
    match config:
        case PPOConfig():
            return PPO(config, spec, device, seed)
        case _:
            assert_never(config)


def choose_device(setting: str | None) -> torch.device:
    """Return the device that `torch_settings.device` names; None takes the first GPU if there is one, else the CPU."""
    if setting is not None:
        return torch.device(setting)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
