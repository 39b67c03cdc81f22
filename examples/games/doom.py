"""ViZDoom's first room: a monster stands at the far wall; walk until it is ahead, and shoot.

ludus simulate python:examples/games/doom.py:basic --run doom --envs 8
"""

from typing import Any

import gymnasium
import numpy as np
from vizdoom import gymnasium_wrapper  # noqa: F401  registers the rooms


class EyeLevel(gymnasium.ObservationWrapper):
    """The middle of the screen in color, each pixel the mean of 4 x 4: 30 x 80. In gray the monster is as the wall."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (30, 80, 3), np.uint8)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """Return the part of the screen in which monsters stand."""
        blocks = observation["screen"][60:180].reshape(30, 4, 80, 4, 3)
        band: np.ndarray = blocks.mean(axis=(1, 3))
        return band.astype(np.uint8)


def basic() -> gymnasium.Env:
    """One monster, 300 game tics, twelve of them each step; -1 a tic, -5 a shot, 106 for the hit.

    A shot leaves the pistol five tics after its button: with twelve in a step, it belongs to the action that fired it.
    """
    return EyeLevel(gymnasium.make("VizdoomBasic-v1", frame_skip=12))
