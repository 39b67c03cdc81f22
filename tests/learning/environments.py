"""Environments of the tasks that Gymnasium does not have: registered when this module is imported.

`tests.learning.environments:CartPoleNoVel-v1` is an id for `gymnasium.make`, here as for Stable-Baselines3: tasks
without the speeds in their observations, and MiniGrid's as vectors, with its own wrapper. Their packages are imported
when such an environment is made.
"""

from typing import Any, Final

import gymnasium

from tests.toys.classic import Masked

GRIDS: Final = {
    "DoorKey": "MiniGrid-DoorKey-5x5-v0",
    "Unlock": "MiniGrid-Unlock-v0",
    "KeyCorridor": "MiniGrid-KeyCorridorS3R1-v0",
    "MultiRoom": "MiniGrid-MultiRoom-N4-S5-v0",
}


def _without_speeds(env_id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    return Masked(gymnasium.make(env_id, **arguments))


def _flat(env_id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    from minigrid.wrappers import FlatObsWrapper  # noqa: PLC0415  an optional package

    return FlatObsWrapper(gymnasium.make(env_id, **arguments))


for name in ("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"):
    stem, _, version = name.partition("-")
    gymnasium.register(f"{stem}NoVel-{version}", _without_speeds, kwargs={"env_id": name})
for name, grid in GRIDS.items():
    gymnasium.register(f"{name}-v0", _flat, kwargs={"env_id": grid})
