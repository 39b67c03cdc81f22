"""Tiny environments with known answers, and the loop that trains on them without any process or socket."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from ludus.collector.acted import Acted
from ludus.collector.policy import ActingPolicy, Policy
from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import PPOConfig
from ludus.protocol.spec import BehaviorSpec
from tests.toys.shapes import shapes_checked_now_and_then
from tests.worker.rollouts import make_rollout, make_spec, random_masks
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.ppo import PPO


class OneStepToy(Protocol):
    """An environment whose episodes are one step long."""

    spec: BehaviorSpec

    def observe(self, rng: np.random.Generator, agents: int) -> np.ndarray: ...

    def masks(self, rng: np.random.Generator, observations: np.ndarray) -> np.ndarray | None: ...

    def rewards(self, observations: np.ndarray, acted: Acted) -> np.ndarray: ...


@dataclass
class Identity:
    """Sees which of three choices is right. Best mean reward: 1."""

    spec: BehaviorSpec = field(default_factory=lambda: make_spec(observations=(3,), branches=(3,)))

    def observe(self, rng: np.random.Generator, agents: int) -> np.ndarray:
        return np.eye(3, dtype=np.float32)[rng.integers(0, 3, agents)]

    def masks(self, rng: np.random.Generator, observations: np.ndarray) -> np.ndarray | None:
        return None

    def rewards(self, observations: np.ndarray, acted: Acted) -> np.ndarray:
        return (observations.argmax(1) == acted.discrete[:, 0]).astype(np.float32)


@dataclass
class Bandit:
    """Sees nothing; the arms pay 0.2, 0.5 and 0.8 on average. Best mean reward: 0.8."""

    spec: BehaviorSpec = field(default_factory=lambda: make_spec(observations=(1,), branches=(3,)))
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def observe(self, rng: np.random.Generator, agents: int) -> np.ndarray:
        return np.zeros((agents, 1), np.float32)

    def masks(self, rng: np.random.Generator, observations: np.ndarray) -> np.ndarray | None:
        return None

    def rewards(self, observations: np.ndarray, acted: Acted) -> np.ndarray:
        pays = np.array([0.2, 0.5, 0.8])[acted.discrete[:, 0]]
        return (self.rng.random(len(pays)) < pays).astype(np.float32)


@dataclass
class TwoBranches:
    """Both branches must name what is seen, and random wrong choices are forbidden. Best mean reward: 1."""

    spec: BehaviorSpec = field(default_factory=lambda: make_spec(observations=(3, 2), branches=(3, 2)))

    def observe(self, rng: np.random.Generator, agents: int) -> np.ndarray:
        first, second = rng.integers(0, 3, agents), rng.integers(0, 2, agents)
        return np.concatenate([np.eye(3)[first], np.eye(2)[second]], 1).astype(np.float32)

    def masks(self, rng: np.random.Generator, observations: np.ndarray) -> np.ndarray | None:
        return random_masks(rng, len(observations), (3, 2)) | (observations > 0)

    def rewards(self, observations: np.ndarray, acted: Acted) -> np.ndarray:
        right = np.stack([observations[:, :3].argmax(1), observations[:, 3:].argmax(1)], 1)
        return (right == acted.discrete).all(1).astype(np.float32)


@dataclass
class Target:
    """Each continuous action should be what is seen, within [-1, 1]. The reward is minus the squared distance."""

    columns: int = 1

    @property
    def spec(self) -> BehaviorSpec:
        return make_spec(observations=(self.columns,), continuous=self.columns)

    def observe(self, rng: np.random.Generator, agents: int) -> np.ndarray:
        return rng.uniform(-0.8, 0.8, (agents, self.columns)).astype(np.float32)

    def masks(self, rng: np.random.Generator, observations: np.ndarray) -> np.ndarray | None:
        return None

    def rewards(self, observations: np.ndarray, acted: Acted) -> np.ndarray:
        return -((acted.continuous_env - observations) ** 2).mean(1)


def split_observations(observations: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Cut joined observations into those of the spec."""
    return np.split(observations, np.cumsum(sizes)[:-1], axis=1)


def learn(toy: OneStepToy, config: PPOConfig, *, updates: int, agents: int = 1024, seed: int = 1) -> list[float]:
    """Train on a one-step toy; return the mean reward of each update's rollout."""
    ppo = PPO(config, toy.spec, torch.device("cpu"), seed=seed)
    policy = ActingPolicy(toy.spec, config.network_settings)
    return play(toy, ppo, policy, steps=range(0, updates * agents, agents), agents=agents, seed=seed)


def play(
    toy: OneStepToy, algorithm: Algorithm, policy: Policy, *, steps: Iterable[int], agents: int, seed: int = 1
) -> list[float]:
    """Play a one-step toy and learn from it at each of the `steps`; return the mean reward of each rollout."""
    rng = np.random.default_rng(seed)
    means = []
    for step in steps:
        policy.load(algorithm.flat_weights())
        joined = toy.observe(rng, agents)
        masks = toy.masks(rng, joined)
        observations = split_observations(joined, [item.size for item in policy.layout.body.observations])
        acted = policy.act(observations, masks, None, rng)
        rewards = toy.rewards(joined, acted)
        means.append(float(rewards.mean()))
        rollout = make_rollout(
            observations=observations,
            rewards=rewards,
            continuous=acted.continuous_sample,
            discrete=acted.discrete,
            log_probs=acted.log_probs,
            masks=masks,
            version=algorithm.version,
        )
        with shapes_checked_now_and_then(algorithm):
            algorithm.update(rollout, step)
    return means


def learn_endless(config: PPOConfig, *, updates: int, ending: SegmentEnd, seed: int = 1) -> dict[str, float]:
    """Train on a task that never ends and pays 1 for every step; segments of 16 steps end as `ending` says."""
    rng = np.random.default_rng(seed)
    spec = make_spec(observations=(2,), branches=(2,))
    ppo = PPO(config, spec, torch.device("cpu"), seed=seed)
    policy = ActingPolicy(spec, config.network_settings)
    segments, length = 16, 16
    for _ in range(updates):
        policy.load(ppo.flat_weights())
        observations = rng.normal(size=(segments * length, 2)).astype(np.float32)
        acted = policy.act([observations], None, None, rng)
        rollout = make_rollout(
            observations=[observations],
            rewards=np.ones(len(observations)),
            discrete=acted.discrete,
            log_probs=acted.log_probs,
            lengths=[length] * segments,
            ending=ending,
        )
        with shapes_checked_now_and_then(ppo):
            stats = ppo.update(rollout, step=0)
    return stats
