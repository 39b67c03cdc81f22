"""Wanderers: a game that knows where it is, and can go back there.

Three agents push themselves about a plane, in episodes from a few steps to many rounds of learning. Whatever happens is
drawn from the game's own generator, so that it does the same whenever it is told the same; the parameter `wind`, drawn
for every episode, is part of what happens.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, ResumableSimulation, StepBuilder

AGENTS = 3
LONGEST = 90
"""Steps of an episode, at most: more than any round of the tests has for an agent."""
SPEC = BehaviorSpec("Wanderer", (ObservationSpec((4,)),), ActionSpec(continuous_size=2, discrete_branches=(3,)))


@dataclass
class Wanderers(ResumableSimulation):
    """The game. `grouped`: all agents of a round share one group and its reward, and its episodes end together."""

    grouped: bool = False
    positions: list[tuple[int, int]] = field(default_factory=list)
    """(played, gone back to): turns played when it was told to go back, and where to."""
    starts: int = 0
    """How often it was told to begin again."""
    turns: int = 0
    """Turns played."""
    pace: float = 0.0
    """Seconds that a turn takes."""
    limit: int | None = None
    """After so many turns it stands still, until `resumed` or `go` is set."""
    go: threading.Event = field(default_factory=threading.Event)
    stood: threading.Event = field(default_factory=threading.Event)

    behaviors = (SPEC,)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin again."""
        self.starts += 1
        self._rng = np.random.default_rng(start.seed)
        self._place = np.zeros((AGENTS, 2))
        self._clock = np.zeros(AGENTS, np.int64)
        self._end = np.zeros(AGENTS, np.int64)
        self._acted: dict[int, tuple[list[float], int]] = {}
        self.turns = 0
        for agent in range(AGENTS):
            self._begin(agent)
        self._ask(builder, np.zeros(AGENTS))

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Move everybody once all are answered."""
        for action in actions:
            self._acted[action.agent] = (action.continuous.tolist(), int(action.discrete[0]))
        if len(self._acted) < AGENTS:
            return
        time.sleep(self.pace)  # allow: sleep, because this game moves at a pace
        self.turns += 1
        if self.turns == self.limit:
            self.stood.set()
            self.go.wait(30)
        pushes = np.array([self._acted[agent][0] for agent in range(AGENTS)])
        choices = np.array([self._acted[agent][1] for agent in range(AGENTS)])
        self._acted.clear()
        wind = builder.parameters.get("wind", 0.0)
        self._place = 0.9 * self._place + 0.2 * pushes + 0.05 * self._rng.standard_normal((AGENTS, 2)) + 0.01 * wind
        rewards = -np.abs(self._place).sum(1) + 0.1 * (choices == self._clock % 3)
        self._clock += 1
        for agent in np.flatnonzero(self._clock >= self._end).tolist():
            group = {"group": self._group(agent), "group_reward": 0.5} if self.grouped else {}
            truncated = bool(self._rng.integers(2))
            builder.end_episode(agent, self._seen(agent), float(rewards[agent]), truncated=truncated, **group)
            self._begin(agent)
            rewards[agent] = 0.0
        builder.report("Environment/Wind", float(wind))
        self._ask(builder, rewards)

    def position(self) -> bytes:
        """Return everything there is."""
        assert not self._acted, "asked while the game waits for all"
        state = {
            "rng": self._rng.bit_generator.state,
            "place": self._place.tolist(),
            "clock": self._clock.tolist(),
            "end": self._end.tolist(),
            "turns": self.turns,
        }
        return json.dumps(state).encode()

    def resume(self, builder: StepBuilder, start: ResetInfo, position: bytes) -> None:
        """Go back."""
        del start
        state: dict[str, Any] = json.loads(position)
        self.positions.append((self.turns, state["turns"]))
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = state["rng"]
        self._place, self._clock = np.array(state["place"]), np.array(state["clock"])
        self._end, self.turns = np.array(state["end"]), state["turns"]
        self._acted = {}
        self._ask(builder, np.zeros(AGENTS))

    def _begin(self, agent: int) -> None:
        self._clock[agent] = 0
        longest = int(self._rng.integers(3, LONGEST))
        self._end[agent] = longest if agent % 2 == 0 or self._end[0] == 0 else int(self._rng.integers(3, 12))
        self._place[agent] = self._rng.standard_normal(2)

    def _group(self, agent: int) -> int:
        return 1 if agent < 2 else 2

    def _seen(self, agent: int) -> list[float]:
        x, y = self._place[agent].tolist()
        return [x, y, float(self._clock[agent]) / LONGEST, float(agent)]

    def _ask(self, builder: StepBuilder, rewards: "np.ndarray[Any, Any]") -> None:
        for agent in range(AGENTS):
            group = {"group": self._group(agent), "group_reward": 0.1} if self.grouped else {}
            builder.request_decision(agent, self._seen(agent), float(rewards[agent]), **group)
