"""Gymnasium's environments as games in the process that learns, for figures of many short runs."""

from typing import Any

import gymnasium
import numpy as np

from ludus.adapters.gymnasium import behavior_name
from ludus.adapters.spaces import ActionDecoder, ObservationEncoder
from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import BehaviorSpec

VELOCITIES = {"CartPole": (1, 3), "Pendulum": (2,), "MountainCarContinuous": (1,)}
"""The numbers of an observation that are speeds, by the name of the environment."""


class Masked(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment without the speeds in its observations: they follow from two observations, not from one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        assert env.spec is not None
        assert isinstance(env.observation_space, gymnasium.spaces.Box)
        hidden = VELOCITIES[behavior_name(env.spec.id)]
        self.shown = np.setdiff1d(np.arange(env.observation_space.shape[0]), hidden)
        low, high = env.observation_space.low[self.shown], env.observation_space.high[self.shown]
        self.observation_space = gymnasium.spaces.Box(low, high)

    def observation(self, observation: Array) -> Array:
        return observation[self.shown]


class Classic:
    """`agents` environments of one id, whose episodes begin and end by themselves."""

    def __init__(self, env_id: str, *, agents: int = 8, seed: int = 1, masked: bool = False) -> None:
        made = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(agents)]
        self.envs = [Masked(env) for env in made] if masked else made
        self.encoder = ObservationEncoder(self.envs[0].observation_space)
        self.decoder = ActionDecoder(self.envs[0].action_space)
        self.spec = BehaviorSpec(behavior_name(env_id), self.encoder.specs, self.decoder.spec)
        self.seed = seed
        self.sums = np.zeros(agents)
        self.earned: list[float] = []
        """Returns of the episodes that ended since `score` was asked for last."""

    def begin(self) -> BehaviorBatch:
        values = [env.reset(seed=1000 * self.seed + index)[0] for index, env in enumerate(self.envs)]
        return self._message(values, np.zeros(len(values), np.float32))

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        rewards = np.zeros(len(self.envs), np.float32)
        values, finals, over, truncated = [], [], [], []
        for index, (env, action) in enumerate(zip(self.envs, self.decoder.rows(continuous, discrete), strict=True)):
            value, reward, terminated, cut, _ = env.step(action)
            rewards[index] = reward
            self.sums[index] += float(reward)
            if terminated or cut:
                over.append(index)
                finals.append(self.encoder.read(value))
                truncated.append(not terminated)
                self.earned.append(float(self.sums[index]))
                self.sums[index] = 0.0
                value, _ = env.reset()
            values.append(value)
        ends = None
        if over:
            seen = self.encoder.stack(finals)
            ends = TerminalBatch(np.array(over, np.int32), rewards[over], seen, np.array(truncated))
            rewards = rewards.copy()
            rewards[over] = 0.0
        return self._message(values, rewards, ends)

    def score(self) -> float:
        """Return the mean return of the episodes that ended since the last call; NaN without any."""
        earned, self.earned = self.earned, []
        return float(np.mean(earned)) if earned else float("nan")

    def _message(self, values: list[Any], rewards: Array, ends: TerminalBatch | None = None) -> BehaviorBatch:
        seen = self.encoder.stack([self.encoder.read(value) for value in values])
        return BehaviorBatch(self.spec.name, DecisionBatch(np.arange(len(values), dtype=np.int32), rewards, seen), ends)
