"""A game, a collector's runner and an algorithm in one process: training as it is, without sockets.

What is played goes through the real batcher, recorder and arena, so that ticks, groups, memories, cuts and successors
are those of a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ludus.collector.agents import AgentIndex
from ludus.collector.arena import Arena
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.runners import LearningRunner
from ludus.collector.step_quota import StepQuota
from ludus.config.behavior import POCAConfig, PPOConfig, SACConfig
from ludus.config.plugins.dqn import DQNConfig
from ludus.config.plugins.td3 import TD3Config
from ludus.protocol.batches import Array, BehaviorBatch, Floats, Ints
from ludus.protocol.spec import BehaviorSpec
from tests.segments import Segment, columns_of, rows_of
from tests.toys.shapes import shapes_checked_now_and_then
from tests.worker.learning.networks.kinds import graph_of
from worker.collectors.acting import POLICIES
from worker.experience.rollout import Rollout, gather
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.build import Demonstrations, build_algorithm

TRAINERS = {"ppo": PPOConfig, "poca": POCAConfig, "sac": SACConfig, "dqn": DQNConfig, "td3": TD3Config}


class Game(Protocol):
    """Something that answers actions with the next message of a simulator."""

    spec: BehaviorSpec

    def begin(self) -> BehaviorBatch: ...

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch: ...

    def score(self) -> float:
        """Return how well it was played since the last call."""


@dataclass
class Console:
    """The simulator's end of a session: takes actions and keeps them until the game is ready."""

    actions: tuple[Array, Array] | None = None

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        assert agents is None, "the game waits with all of its agents"
        self.actions = continuous, discrete


@dataclass
class Arcade:
    """One game that is played by a policy, round by round."""

    game: Game
    config: PPOConfig | POCAConfig | SACConfig | DQNConfig | TD3Config
    steps: int
    """Of a round."""
    seed: int = 1
    round: int = 0
    step_id: int = 0
    delivered: list[Segment] = field(default_factory=list)
    """Of rounds to come."""
    runner: LearningRunner = field(init=False)

    def __post_init__(self) -> None:
        spec, settings = self.game.spec, self.config.network_settings
        policy = POLICIES.policy(spec, settings, self.config.head, graph=graph_of(spec, settings, self.config.head))
        self.console, self.quota = Console(), StepQuota()
        self.arena = Arena.create(spec, 4 * self.steps, memory_size=policy.memory_size)
        self.agent_index = AgentIndex(1, 0, spec.name)
        recorder = TrajectoryRecorder(self.arena, self.config.time_horizon, self.quota)
        self.free = recorder.segments.blocks = list(range(self.arena.layout.blocks))
        self.runner = LearningRunner(
            number=0,
            behavior=spec.behavior,
            policy=policy,
            recorder=recorder,
            rng=np.random.default_rng(self.seed),
            low_blocks=0,
            request_turn=lambda _: None,
        )

    def collect(self, weights: Array, version: int) -> Rollout:
        """Play a round with these weights."""
        runner = self.runner
        runner.policy.load(weights)
        runner.version = version
        self.round += 1
        self.quota.grant(self.round, self.steps, size=self.steps)
        if self.round == 1:
            self._send(self.game.begin())
        report = runner.run()
        while not report.deliver:
            assert self.console.actions is not None, "the lane answers until the round is complete"
            actions, self.console.actions = self.console.actions, None
            self._send(self.game.play(*actions))
            report = runner.run()
        closed = runner.recorder.segments.take()
        assert closed is not None
        self.delivered += rows_of(closed)
        segments = [segment for segment in self.delivered if segment.round == self.round]
        self.delivered = [segment for segment in self.delivered if segment.round > self.round]  # borrowed from it
        rollout = gather(self.arena, columns_of(segments))
        self.free.extend(block for segment in segments for block in segment.blocks)
        runner.recorder.take_episodes()
        return rollout

    def _send(self, batch: BehaviorBatch) -> None:
        self.step_id += 1
        self.runner.stage(self.console, self.agent_index, self.step_id, batch)


@dataclass
class Training:
    """An algorithm that learns a game."""

    algorithm: Algorithm
    arcade: Arcade
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the last update."""

    def run(self, updates: int) -> list[float]:
        """Play and learn; return how well each round was played."""
        scores = []
        for _ in range(updates):
            self.advance()
            scores.append(self.arcade.game.score())
        return scores

    def advance(self) -> None:
        """Play one round and learn from it."""
        with shapes_checked_now_and_then(self.algorithm):
            rollout = self.arcade.collect(self.algorithm.flat_weights(), self.algorithm.version)
            self.step += rollout.steps
            self.metrics = self.algorithm.update(rollout, self.step) or self.metrics

    def reach(self, bar: float, updates: int) -> bool:
        """Play and learn until a whole round was played at least that well; false if none of so many was.

        It ends there: learning rates that learn a toy in seconds are too high to stay at its best score.
        """
        return any(self.run(1)[0] >= bar for _ in range(updates))


def training(
    game: Game,
    *,
    seed: int = 1,
    trainer: str = "ppo",
    network: Mapping[str, Any] | None = None,
    gamma: float = 0.99,
    signals: Mapping[str, Any] | None = None,
    time_horizon: int = 64,
    **hyperparameters: Any,
) -> Training:
    """Return an algorithm and a game for it. A small network, constant schedules, and overrides."""
    config = TRAINERS[trainer].model_validate(
        {
            "trainer_type": trainer,
            "hyperparameters": {
                "batch_size": 128,
                "buffer_size": 1024,
                "learning_rate": 3e-3,
                "learning_rate_schedule": "constant",
                **hyperparameters,
            },
            "network_settings": {"hidden_units": 32, "num_layers": 2, **(network or {})},
            "reward_signals": {"extrinsic": {"gamma": gamma}} if signals is None else dict(signals),
            "time_horizon": time_horizon,
        }
    )
    algorithm = build_algorithm(config, game.spec, torch.device("cpu"), seed, Demonstrations({}))
    return Training(algorithm, Arcade(game, config, algorithm.round_steps(), seed))
