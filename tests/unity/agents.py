"""Agents: what they see, do and earn, as C#'s Agent tells it.

Rewards are sums since an agent's previous info. An agent keeps its id from episode to episode, as long as it is
enabled.
"""

from collections.abc import Container

import numpy as np

from ludus.protocol.mlagents import agent_pb2
from tests.unity.descriptions import Behavior, Package
from tests.unity.sensors import Floats, encode, render


class Agent:
    """One agent, from the moment it is enabled until it is disabled."""

    def __init__(self, agent_id: int, place: int, behavior: Behavior, group_id: int, rng: np.random.Generator) -> None:
        self.id = agent_id
        self.behavior = behavior
        self.steps = 0
        self.length = 0
        self.episodes = 0
        self.reward = 0.0
        self.group_reward = 0.0
        self.mask: list[bool] = []
        """Of all branches, True = forbidden. Empty until the game forbids something for the first time."""
        self._turn = place % behavior.decision_period if behavior.staggered else 0
        self._group_id = group_id
        self._rng = rng
        self._decisions = 0
        self._continuous: Floats = np.zeros(behavior.continuous, np.float32)
        self._discrete = np.zeros(len(behavior.branches), np.int64)
        self._draw_cue()
        self.begin()

    def is_its_turn(self, step: int) -> bool:
        """Whether it asks for a decision at this step."""
        return step % self.behavior.decision_period == self._turn

    def begin(self) -> None:
        """Begin an episode. What was earned and not yet told stays."""
        self.steps = 0
        self.length = episode_length(self.behavior, self._rng)
        self.take(np.zeros_like(self._continuous), np.zeros_like(self._discrete))

    def take(self, continuous: Floats, discrete: np.ndarray) -> None:
        """Store actions, to be executed at every step until there are others."""
        self._continuous, self._discrete = continuous, discrete

    def decide(self, package: Package, trainer: Container[str]) -> agent_pb2.AgentInfoProto:
        """Ask for a decision: tell the state, and what was earned on the way to it."""
        self._draw_cue()
        if self.behavior.masked and self._decisions:
            self.mask = self._forbid() if self._decisions % 2 else [False] * sum(self.behavior.branches)
        self._decisions += 1
        return self._info(package, trainer)

    def end(self, package: Package, trainer: Container[str], interrupted: bool) -> agent_pb2.AgentInfoProto:
        """End the episode: tell the final state, and what was earned on the way to it."""
        self._draw_cue()
        self.episodes += 1
        info = self._info(package, trainer)
        info.done, info.max_step_reached = True, interrupted
        return info

    def act(self) -> float:
        """Execute the stored actions and return the share that was right, in [0, 1]."""
        wanted, chosen = self._cue
        right = [*(1 - np.abs(np.clip(self._continuous, -1, 1) - wanted) / 2), *(self._discrete == chosen)]
        return float(np.mean(right)) if right else 0.0

    def is_forbidden(self, discrete: np.ndarray) -> bool:
        """Whether a choice is one that the mask forbids."""
        starts = np.cumsum([0, *self.behavior.branches[:-1]])
        return bool(self.mask) and any(
            self.mask[start + choice] for start, choice in zip(starts, discrete, strict=True)
        )

    @property
    def signal(self) -> Floats:
        """The cue as the sensors show it: -1 or 1 for each continuous action, then one-hot choices."""
        wanted, chosen = self._cue
        choices = [
            np.eye(size, dtype=np.float32)[choice] for size, choice in zip(self.behavior.branches, chosen, strict=True)
        ]
        return np.concatenate([wanted, *choices]) if self.behavior.continuous or choices else np.zeros(1, np.float32)

    def _draw_cue(self) -> None:
        self._cue = (
            self._rng.choice(np.array([-1, 1], np.float32), self.behavior.continuous),
            np.array([self._rng.integers(size) for size in self.behavior.branches], np.int64),
        )

    def _forbid(self) -> list[bool]:
        mask: list[bool] = []
        for size, wanted in zip(self.behavior.branches, self._cue[1], strict=True):
            forbidden = (wanted + self._rng.integers(1, size)) % size if size > 1 else None
            mask += [choice == forbidden for choice in range(size)]
        return mask

    def _info(self, package: Package, trainer: Container[str]) -> agent_pb2.AgentInfoProto:
        info = agent_pb2.AgentInfoProto(id=self.id, reward=self.reward, action_mask=self.mask)
        if package.has("multiAgentGroups"):
            info.group_id, info.group_reward = self._group_id, self.group_reward
        self.reward = self.group_reward = 0.0
        for sensor in sorted(self.behavior.sensors, key=lambda sensor: sensor.name.casefold()):
            info.observations.append(encode(sensor, render(sensor, self.signal, self._rng), package, trainer))
        return info


def episode_length(behavior: Behavior, rng: np.random.Generator) -> int:
    """Draw the length of an episode; 0: it does not end by itself."""
    if not behavior.episode_length:
        return 0
    return behavior.episode_length + int(rng.integers(behavior.jitter + 1))


def is_over(steps: int, length: int) -> bool:
    """Whether a count of steps has reached a limit, where 0 means that there is none."""
    return 0 < length <= steps
