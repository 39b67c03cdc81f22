"""A game that is seen as a picture, and has to be remembered for a step: which half was lit."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 8
"""Steps of an episode."""


class Lights(gymnasium.Env[Any, Any]):
    """A picture with one bright half, left or right; naming the half that was bright one step before earns 1."""

    observation_space = spaces.Box(0, 255, (20, 20, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.before = self.lit = 0
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.before)
        self.before, self.lit = self.lit, int(self.np_random.integers(2))
        self.steps += 1
        return self._seen(), reward, False, self.steps == LENGTH, {}

    def _seen(self) -> Any:
        picture = self.np_random.integers(0, 60, (20, 20, 3), np.uint8)
        picture[:, 10 * self.lit : 10 * self.lit + 10] += 180
        return picture
