"""Runners: how a collector makes those of an admitted behavior. Each has a generator of its own."""

from collections.abc import Callable, Sequence

import numpy as np

from ludus.collector import messages
from ludus.collector.acting import PolicyFactory
from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena
from ludus.collector.evaluation import EvaluationEpisodes, EvaluationRunner
from ludus.collector.exploration import PinkNoise
from ludus.collector.opponents import OpponentRunner, Opponents
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.runners import LearningRunner, PolicyRunner
from ludus.collector.settings import CollectorSettings
from ludus.collector.step_quota import StepQuota
from ludus.protocol.spec import BehaviorSpec


class RunnerFactory:
    """Makes the runners of one collector process."""

    def __init__(
        self,
        settings: CollectorSettings,
        start: messages.Settings,
        policies: PolicyFactory,
        schedule: Callable[[PolicyRunner], None],
    ) -> None:
        self._settings = settings
        self._start = start
        self._policies = policies
        self._schedule = schedule

    def learning(self, message: messages.Admit, spec: BehaviorSpec, arena: Arena) -> LearningRunner:
        """Make the runner of agents that learn."""
        settings, start, policy = self._settings, self._start, message.policy
        quota = StepQuota()
        runner = LearningRunner(
            number=message.runner,
            behavior=spec.behavior,
            policy=self._policies.policy(spec, policy.network_settings, policy.head, policy.device),
            recorder=TrajectoryRecorder(arena, message.policy.time_horizon, quota),
            quota=quota,
            rng=np.random.default_rng([settings.seed, start.index, start.generation, message.runner]),
            low_blocks=message.low_blocks,
            ticks=(start.generation * settings.count + start.index) << 32,
            noise=PinkNoise(spec.actions.continuous_size) if policy.pink_noise else None,
            schedule=lambda: self._schedule(runner),
        )
        return runner

    def opponent_runner(self, message: messages.Admit, spec: BehaviorSpec, arena: Arena) -> OpponentRunner:
        """Make the runner of teams that do not learn."""
        policy = message.policy
        opponents = Opponents(self._policies.stacked(spec, policy.network_settings, policy.head, policy.device))
        seed = [self._settings.seed, self._start.index, self._start.generation, message.runner, 1]
        runner = OpponentRunner(
            number=message.runner,
            behavior=spec.behavior,
            opponents=opponents,
            observer=opponents,
            recorder=TrajectoryRecorder(arena, message.policy.time_horizon, StepQuota()),
            quota=StepQuota(),
            rng=np.random.default_rng(seed),
            low_blocks=0,
            recorded=False,
            schedule=lambda: self._schedule(runner),
        )
        return runner

    def assessment(
        self, message: messages.Admit, spec: BehaviorSpec, arena: Arena, weights: Sequence[FloatArray]
    ) -> EvaluationRunner:
        """Make the runner of a behavior whose frozen policies are evaluated; each has its weights."""
        policies = [
            self._policies.policy(spec, each.network_settings, each.head, message.policy.device)
            for each in message.policy.evaluated
        ]
        for policy, flat in zip(policies, weights, strict=True):
            policy.load(flat)
        settings, start, episode_batches = self._settings, self._start, EvaluationEpisodes()
        seed = [settings.seed, settings.attempt, start.index, start.generation, message.runner]
        runner = EvaluationRunner(
            number=message.runner,
            behavior=spec.behavior,
            policies=policies,
            episode_batches=episode_batches,
            observer=episode_batches,
            recorder=TrajectoryRecorder(arena, message.policy.time_horizon, StepQuota()),
            quota=StepQuota(),
            rng=np.random.default_rng(seed),
            low_blocks=0,
            recorded=False,
            version=0,
            schedule=lambda: self._schedule(runner),
        )
        return runner
