"""A sound game, and the same with one planted fault each; and sound games of other kinds."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FAULTS = {
    "": None,
    "pays nothing": "returns_constant",
    "pays the same for the same length": "returns_constant",
    "never ends": "no_episode_ended",
    "sees millions": "observation_scale",
    "sees nearly nothing": "observation_scale",
    "has a stuck sensor": "observation_constant",
    "ignores its action": "action_ignored",
    "ignores one of its actions": "action_ignored",
    "leaves one choice": "no_choice",
    "forbids all": "bad_game",
    "sees NaN": "bad_game",
    "earns NaN": "bad_game",
    "changes its shape": "bad_game",
    "crashes": "game_crashed",
}
"""Fault -> the code of what is found; of a sound game nothing."""


class Walk(gymnasium.Env[Any, Any]):
    """Walk to a place on a line that the observation shows."""

    def __init__(self, fault: str = "") -> None:
        assert fault in FAULTS
        self.fault = fault
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position, self.speed = self.np_random.uniform(-1, 1), 0.0
        self.place = self.np_random.uniform(-1, 1)
        self.tick, self.length = 0, 25 if self.fault.startswith("pays") else int(self.np_random.integers(10, 40))
        return self._see(), self._info()

    def step(self, action: Any) -> Any:
        push, brake = (int(part) - 1 for part in action)
        if self.fault == "ignores its action":
            push, brake = (int(part) - 1 for part in self.np_random.integers(0, 3, 2))
        elif self.fault == "ignores one of its actions":
            brake = int(self.np_random.integers(0, 3)) - 1
        if self.tick % 40 == 39:
            self.place = self.np_random.uniform(-1, 1)
        self.speed = 0.7 * self.speed + 0.1 * push + 0.05 * brake
        self.position += self.speed
        self.tick += 1
        if self.fault == "crashes" and self.tick == 9:
            raise RuntimeError("the level file is missing")
        reward = 1.0 - abs(self.position - self.place)
        if self.fault == "pays nothing":
            reward = 0.0
        elif self.fault.startswith("pays the same"):
            reward = 1.0
        elif self.fault == "earns NaN" and self.tick == 5:
            reward = float("nan")
        ended = self.tick >= self.length and self.fault != "never ends"
        return self._see(), reward, ended, False, self._info()

    def _see(self) -> Any:
        fourth = 0.37 if self.fault == "has a stuck sensor" else float(self.np_random.normal())
        seen = np.array([self.position, self.speed, self.place, fourth], np.float32)
        if self.fault == "sees millions":
            return seen * 1e6
        if self.fault == "sees nearly nothing":
            return seen * 1e-6
        if self.fault == "sees NaN" and self.tick == 5:
            return seen * np.nan
        return seen[:3] if self.fault == "changes its shape" and self.tick == 5 else seen

    def _info(self) -> dict[str, Any]:
        if self.fault == "leaves one choice":
            return {"action_mask": np.array([1, 0, 0, 0, 1, 0], np.int8)}
        if self.fault == "forbids all" and self.tick == 5:
            return {"action_mask": np.zeros(6, np.int8)}
        return {}


class Pictures(gymnasium.Env[Any, Any]):
    """Follow a bright square: small pictures."""

    observation_space = spaces.Box(0, 255, (20, 20, 1), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.integers(4, 16, 2)
        self.tick, self.length = 0, int(self.np_random.integers(10, 30))
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.place = np.clip(self.place + np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])[int(action)], 2, 17)
        self.tick += 1
        return self._see(), float(self.place[0]) / 20, self.tick >= self.length, False, {}

    def _see(self) -> Any:
        picture = np.zeros((20, 20, 1), np.uint8)
        row, column = self.place
        picture[row - 2 : row + 3, column - 2 : column + 3] = 255
        return picture


class Cue(gymnasium.Env[Any, Any]):
    """Remember a cue: it is shown at the beginning alone, and the observation changes rarely."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.tick = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        over = self.tick == 8
        reward = float(int(action) == self.cue) if over else 0.0
        return np.array([0, over, 0], np.float32), reward, over, False, {}


class Heavy(gymnasium.Env[Any, Any]):
    """Land softly, with continuous thrust: as LunarLander, without its library."""

    observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-0.5, 0.5), 1.4, *self.np_random.normal(0, 0.1, 2)])
        self.contact = 0.0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        x, y, speed, fall = self.state
        speed, fall = speed + 0.05 * float(action[1]), fall - 0.02 + 0.05 * max(float(action[0]), 0.0)
        self.state = np.array([x + 0.1 * speed, y + 0.1 * fall, speed, fall])
        down, away = self.state[1] <= 0, abs(self.state[0]) > 1.5 or self.state[1] > 3
        self.contact = float(down)
        reward = (100.0 if down and abs(fall) < 0.3 else -100.0) if down or away else -abs(x) - 0.1 * abs(fall)
        return self._see(), float(reward), bool(down or away), False, {}

    def _see(self) -> Any:
        return np.array([*self.state, self.contact, self.contact], np.float32)
