"""Chase: an agent pushes itself along a line to a target. PPO learns it within 10,000 steps.

Each mistake of its author's is an argument: it is the game in which a run's health finds out what is wrong.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 40
"""Decisions of an episode, at most."""


@dataclass
class Chase(gymnasium.Env[Any, Any]):
    """Right as it is by default."""

    reward: float = 1.0
    """Factor of all rewards."""
    observation: float = 1.0
    """Factor of all observations."""
    constant_reward: float | None = None
    """Takes the place of all rewards."""
    ends: bool = True
    ignores_actions: bool = False
    sparse: bool = False
    """Whether the target alone is rewarded."""
    stuck: float | None = None
    """Takes the place of the observed velocity."""
    blind: bool = False
    """Whether all observations are 0."""
    hides_target: bool = False
    """Whether the observed target is another one than the rewarded one."""
    continuous: bool = False
    render_mode: None = None

    def __post_init__(self) -> None:
        """Say what is seen and done."""
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if self.continuous else Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin anywhere."""
        super().reset(seed=seed, options=options)
        self._at, self._velocity = self.np_random.uniform(-1, 1), 0.0
        self._target = float(self.np_random.uniform(-1, 1))
        self._shown = float(self.np_random.uniform(-1, 1)) if self.hides_target else self._target
        self._left = LENGTH
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push."""
        push = float(np.asarray(action).reshape(-1)[0]) if self.continuous else float(action) - 1.0
        if self.ignores_actions:
            push = self.np_random.uniform(-1, 1)
        before = abs(self._at - self._target)
        self._velocity = 0.7 * self._velocity + 0.1 * push
        self._at = float(np.clip(self._at + self._velocity, -2, 2))
        after = abs(self._at - self._target)
        reached, self._left = after < 0.1, self._left - 1
        reward = float(reached) if self.sparse else before - after + float(reached)
        if self.constant_reward is not None:
            reward = self.constant_reward
        done = self.ends and reached
        return self._see(), reward * self.reward, done, self.ends and not done and self._left <= 0, {}

    def _see(self) -> Any:
        velocity = self._velocity if self.stuck is None else self.stuck
        seen = np.array([self._at, velocity, self._shown - self._at], np.float32) * self.observation
        return (seen * (not self.blind)).astype(np.float32)
