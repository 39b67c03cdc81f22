"""ViZDoom's first room: a monster stands at the far wall; walk until it is ahead, and shoot.

ludus simulate python:examples/games/doom.py:basic --run doom --envs 8
"""

from typing import Any

import gymnasium
import numpy as np
from vizdoom import gymnasium_wrapper  # noqa: F401  registers the rooms


class SmallScreen(gymnasium.ObservationWrapper):
    """The screen alone, every fifth pixel of it, in gray: 48 x 64."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (48, 64, 1), np.uint8)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """Return the screen of this moment."""
        few: np.ndarray = observation["screen"][::5, ::5].mean(axis=2, keepdims=True)
        return few.astype(np.uint8)


def basic() -> gymnasium.Env:
    """One monster, 300 game tics, four of them each step; -1 a tic, -5 a miss, 106 for the hit."""
    return SmallScreen(gymnasium.make("VizdoomBasic-v1", frame_skip=4))
