"""Makes the policy runners of admitted behaviors. Each has a random generator of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena
from ludus.collector.commands import Admit, Settings
from ludus.collector.evaluation import EvaluationEpisodes, EvaluationRunner
from ludus.collector.exploration import PinkNoise
from ludus.collector.opponents import OpponentRunner, Opponents
from ludus.collector.policy import PolicyFactory
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.runners import LearningRunner, PolicyRunner
from ludus.collector.settings import CollectorSettings
from ludus.collector.step_quota import StepQuota


@dataclass(frozen=True, slots=True)
class RunnerFactory:
    """Makes the runners of one collector process."""

    settings: CollectorSettings
    start: Settings
    policies: PolicyFactory
    request_turn: Callable[[PolicyRunner], None]

    def learning(self, message: Admit, arena: Arena) -> LearningRunner:
        """Make the runner of agents that learn."""
        settings, start, policy, spec = self.settings, self.start, message.policy, arena.layout.spec
        return LearningRunner(
            number=message.runner,
            behavior=spec.behavior,
            recorder=TrajectoryRecorder(arena, policy.time_horizon, StepQuota()),
            rng=np.random.default_rng([settings.seed, start.index, start.generation, message.runner]),
            request_turn=self.request_turn,
            low_blocks=message.low_blocks,
            ticks=(start.generation * settings.count + start.index) << 32,
            policy=self.policies.policy(spec, policy.network_settings, policy.head, policy.device, policy.graph),
            noise=PinkNoise(spec.actions.continuous_size) if policy.pink_noise else None,
        )

    def opponents(self, message: Admit, arena: Arena) -> OpponentRunner:
        """Make the runner of teams that do not learn."""
        start, policy, spec = self.start, message.policy, arena.layout.spec
        opponents = Opponents(
            self.policies.stacked(spec, policy.network_settings, policy.head, policy.device, policy.graph)
        )
        return OpponentRunner(
            number=message.runner,
            behavior=spec.behavior,
            recorder=TrajectoryRecorder(arena, policy.time_horizon, StepQuota()),
            rng=np.random.default_rng([self.settings.seed, start.index, start.generation, message.runner, 1]),
            request_turn=self.request_turn,
            observer=opponents,
            recorded=False,
            opponents=opponents,
        )

    def evaluation(self, message: Admit, arena: Arena, weights: Sequence[FloatArray]) -> EvaluationRunner:
        """Make the runner of a behavior whose frozen policies are evaluated; each has its weights."""
        settings, start, spec = self.settings, self.start, arena.layout.spec
        policies = []
        for network, flat in zip(message.policy.evaluated, weights, strict=True):
            device = message.policy.device
            policies.append(self.policies.policy(spec, network.network_settings, network.head, device, network.graph))
            policies[-1].load(flat)
        seed = [settings.seed, settings.attempt, start.index, start.generation, message.runner]
        episode_batches = EvaluationEpisodes()
        return EvaluationRunner(
            number=message.runner,
            behavior=spec.behavior,
            recorder=TrajectoryRecorder(arena, message.policy.time_horizon, StepQuota()),
            rng=np.random.default_rng(seed),
            request_turn=self.request_turn,
            observer=episode_batches,
            version=0,
            recorded=False,
            policies=policies,
            episode_batches=episode_batches,
        )
