"""Games of one's own in one file, one of each kind that a Python game can be. All forbid actions, and raise when a
forbidden one is taken: a corridor of `size` cells in which nobody may walk through the wall at its left end."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder

LIMIT = 30


def allowed(position: int) -> list[int]:
    """Return the mask: left, right."""
    return [int(position > 0), 1]


def walk(position: int, action: int) -> int:
    if not allowed(position)[action]:
        raise RuntimeError(f"{action} is forbidden at {position}")
    return position + (1 if action else -1)


class Maze(gymnasium.Env[Any, Any]):
    """Gymnasium: the mask is in `info`."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 100, (1,), np.float32)

    def __init__(self, size: int = 4) -> None:
        if size < 2:
            raise ValueError(f"a maze of {size} cells has no way")
        self.size = size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.steps = 0
        return self._seen(), {"action_mask": np.array(allowed(self.position), np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position, self.steps = walk(self.position, int(action)), self.steps + 1
        mask = np.array(allowed(self.position), np.int8)
        return self._seen(), -1.0, self.position == self.size, self.steps == LIMIT, {"action_mask": mask}

    def _seen(self) -> Any:
        return np.array([self.position], np.float32)


class Race(ParallelEnv[str, Any, Any]):
    """PettingZoo: the mask is in the observation. Whoever is first at the end wins."""

    metadata = {"name": "race"}  # noqa: RUF012  as PettingZoo declares it

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.possible_agents = ["red", "blue"]
        self.render_mode = None

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"observation": Maze.observation_space, "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents = self.possible_agents[:]
        self.positions = dict.fromkeys(self.agents, 0)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self.positions = {agent: walk(self.positions[agent], int(action)) for agent, action in actions.items()}
        seen, present = self._seen(), self.agents
        there = [agent for agent in present if self.positions[agent] == self.size]
        rewards = dict.fromkeys(present, 0.0)
        if len(there) == 1:
            rewards = {agent: 1.0 if agent in there else -1.0 for agent in present}
        over = dict.fromkeys(present, bool(there))
        if there:
            self.agents = []
        return seen, rewards, over, dict.fromkeys(present, False), {agent: {} for agent in present}

    def _seen(self) -> dict[str, Any]:
        return {
            agent: {
                "observation": np.array([position], np.float32),
                "action_mask": np.array(allowed(position), np.int8),
            }
            for agent, position in self.positions.items()
        }


class Crowd(Simulation):
    """The SDK's own face: the mask is an argument. Walkers begin again as often as they like; one more joins late."""

    behaviors = (BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,))),)

    def __init__(self, size: int = 4, walkers: int = 2) -> None:
        self.size, self.walkers = size, walkers
        self.starts: list[ResetInfo] = []

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self.starts.append(start)
        if start.first:
            self.random = np.random.default_rng(start.seed)
        self.positions = {walker: int(self.random.integers(self.size)) for walker in range(self.walkers)}
        self.steps = dict.fromkeys(self.positions, 0)
        for walker in self.positions:
            self._ask(builder, walker, 0.0)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self.positions[action.agent] = walk(self.positions[action.agent], int(action.discrete[0]))
            self.steps[action.agent] += 1
        for walker in [action.agent for action in actions]:
            arrived, late = self.positions[walker] == self.size, self.steps[walker] == LIMIT
            reward = -1.0
            if arrived or late:
                builder.end_episode(walker, [self.positions[walker]], reward, truncated=not arrived)
                self.positions[walker], self.steps[walker], reward = 0, 0, 0.0
            self._ask(builder, walker, reward)
        if self.walkers not in self.positions:
            self.positions[self.walkers], self.steps[self.walkers] = 0, 0
            self._ask(builder, self.walkers, 0.0)

    def _ask(self, builder: StepBuilder, walker: int, reward: float) -> None:
        builder.request_decision(walker, [self.positions[walker]], reward, mask=allowed(self.positions[walker]))


def make_maze(size: int = 3) -> Maze:
    """A factory: a maze with a limit of Gymnasium's own would be made here."""
    return Maze(size)


def make_nothing() -> str:
    return "a maze"


class Score:
    """No game."""


BOARD = Maze()
