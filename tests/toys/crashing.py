"""An environment that crashes the first time, in every process, as long as the file that LUDUS_TEST_CRASHES names lets
it."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Crashing(gymnasium.Env[Any, Any]):
    """Raises in its fifth step, and counts that in the file."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        count = Path(os.environ["LUDUS_TEST_CRASHES"])
        if self.steps == 5 and int(count.read_text()) > 0:
            count.write_text(str(int(count.read_text()) - 1))
            raise RuntimeError("the game crashed")
        return np.zeros(1, np.float32), 1.0, self.steps >= 50, False, {}


gymnasium.register("Crashing-v0", Crashing)
