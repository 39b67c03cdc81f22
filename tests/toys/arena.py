"""PettingZoo games in which happens what board games avoid, and a simulator must get right.

`Arena`: players act one after the other. Every move pays everybody, also those who have not acted yet; some die on the
way, some before their first move; a limit may end it for those who are left. `Relay`: all act at once; players enter
late and leave early. Both return the same array again and again, changed.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

PLAYERS = 4
LIMIT = 12


class Arena(AECEnv[str, Any, Any]):
    """Rewards, deaths and the order of play come from the seed; what players do only shows in what they see."""

    def __init__(self, limit: int = LIMIT, mortality: float = 0.1, fair: bool = False) -> None:
        super().__init__()
        self.possible_agents = [f"fighter_{index}" for index in range(PLAYERS)]
        self.limit, self.mortality, self.fair = limit, mortality, fair
        self.options: dict[str, Any] | None = None
        self.seeds: list[int | None] = []
        self._seen = np.zeros(3, np.float32)
        self._random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-100, 100, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.seeds.append(seed)
        self.options = options
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._moves, self._last = 0, 0
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        self._seen[:] = self._moves, self._last, self.possible_agents.index(agent)
        return self._seen

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        mover = self.agent_selection
        self._cumulative_rewards[mover] = 0.0
        self._moves, self._last = self._moves + 1, int(action)
        pay = self._random.integers(-3, 4, len(self.agents)) / 10
        if self.fair:
            pay -= pay.mean()
        self.rewards = dict(zip(self.agents, pay.tolist(), strict=True))
        for agent in self.agents:
            self.terminations[agent] |= bool(self._random.random() < self.mortality)
            self.truncations[agent] |= self._moves >= self.limit
        self._accumulate_rewards()
        place = self.agents.index(mover)
        following = [*self.agents[place + 1 :], *self.agents[: place + 1]]
        living = [agent for agent in following if not (self.terminations[agent] or self.truncations[agent])]
        self.agent_selection = living[0] if living else following[0]
        self._deads_step_first()


class Relay(ParallelEnv[str, Any, Any]):
    """Two run from the start, the others one after the other; each for a while that the seed decides."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.possible_agents = [f"runner_{index}" for index in range(PLAYERS)]
        self.limit = limit
        self._seen = {agent: np.zeros(2, np.float32) for agent in self.possible_agents}
        self._random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-100, 100, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(np.array([0, -2], np.float32), np.array([1, 2], np.float32))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:2]
        self._next, self._moves = 2, 0
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def _observe(self, agents: list[str]) -> dict[str, Any]:
        for agent in agents:
            self._seen[agent][:] = self._moves, self.possible_agents.index(agent)
        return {agent: self._seen[agent] for agent in agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert set(actions) == set(self.agents)
        self._moves += 1
        there = self.agents[:]
        if self._next < PLAYERS and self._random.random() < 0.4:
            there.append(self.possible_agents[self._next])
            self._next += 1
        rewards = {agent: float(self._random.integers(-5, 6)) for agent in there}
        terminations = {agent: bool(self._random.random() < 0.15) for agent in there}
        truncations = dict.fromkeys(there, self._moves >= self.limit)
        self.agents = [agent for agent in there if not (terminations[agent] or truncations[agent])]
        return self._observe(there), rewards, terminations, truncations, {agent: {} for agent in there}


class Chase(ParallelEnv[str, Any, Any]):
    """A hunter and two hares, who see different things and meet for five moves."""

    def __init__(self, unlike: bool = False, prize: float = 1.0) -> None:
        self.possible_agents = ["hunter_0", "hare_0", "hare_1"]
        self.prize = prize
        """What the hunter earns in a move, of which each hare loses half of 1."""
        self.unlike = unlike
        """Whether the hares see different things, too."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        size = {"hunter_0": 4, "hare_0": 2, "hare_1": 3 if self.unlike else 2}[agent]
        return spaces.Box(0, 1, (size,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(5)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self._moves = self.possible_agents[:], 0
        return self._observe(), {agent: {"action_mask": np.array([1, 1, 0, 0, 1])} for agent in self.agents}

    def _observe(self) -> dict[str, Any]:
        return {agent: self.observation_space(agent).sample() for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._moves += 1
        there, over = self.agents[:], self._moves >= 5
        seen = self._observe()
        if over:
            self.agents = []
        return (
            seen,
            {agent: self.prize if agent == "hunter_0" else -0.5 for agent in there},
            dict.fromkeys(there, over),
            dict.fromkeys(there, False),
            {agent: {} for agent in there},
        )


def arena(**arguments: Any) -> Arena:
    return Arena(**arguments)


def relay(**arguments: Any) -> Relay:
    return Relay(**arguments)


def chase(**arguments: Any) -> Chase:
    return Chase(**arguments)
