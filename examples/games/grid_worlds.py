"""MiniGrid's worlds as numbers: what the agent sees is a grid of codes, which are no amounts, so each becomes one-hot.

ludus simulate python:examples/games/grid_worlds.py:door_key --run minigrid --envs 16
"""

from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers the worlds
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

CODES = [len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX)]
"""Kinds of objects, their colors and their states: the three numbers of each of the 7 x 7 cells that the agent sees."""


class OneHotView(gymnasium.ObservationWrapper):
    """The view as 7 * 7 * 20 numbers of 0 and 1. The mission, a text that never changes here, is left out."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        height, width, _ = env.observation_space["image"].shape  # type: ignore[index]  # a Dict
        self.observation_space = gymnasium.spaces.Box(0, 1, (height * width * sum(CODES),), np.float32)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """Return the view of this moment."""
        codes = observation["image"].reshape(-1, 3)
        return np.concatenate([np.eye(size, dtype=np.float32)[codes[:, i]] for i, size in enumerate(CODES)], 1).ravel()


def door_key() -> gymnasium.Env:
    """Find the key, open the door, reach the goal; 250 steps at most."""
    return OneHotView(gymnasium.make("MiniGrid-DoorKey-5x5-v0"))


def memory() -> gymnasium.Env:
    """Look at an object, walk down a corridor, and turn to its like: without a memory that is a guess."""
    return OneHotView(gymnasium.make("MiniGrid-MemoryS7-v0"))
