"""Lanes: how a collector makes those of an admitted behavior. Each has a generator of its own."""

from collections.abc import Callable, Sequence

import numpy as np

from ludus.collector import messages
from ludus.collector.acting import PolicyFactory
from ludus.collector.arena import Arena
from ludus.collector.assessment import AssessmentLane, Sittings
from ludus.collector.batcher import BaseLane, Lane
from ludus.collector.exploration import PinkNoise
from ludus.collector.opponents import Opponents, OppositionLane
from ludus.collector.policy import FloatArray
from ludus.collector.rounds import Rounds
from ludus.collector.settings import CollectorSettings
from ludus.collector.tracker import Tracker
from ludus.protocol.spec import BehaviorSpec


class LaneBuilder:
    """Makes the lanes of one collector process."""

    def __init__(
        self,
        settings: CollectorSettings,
        start: messages.Settings,
        policies: PolicyFactory,
        schedule: Callable[[BaseLane], None],
    ) -> None:
        self._settings = settings
        self._start = start
        self._policies = policies
        self._schedule = schedule

    def learning(self, message: messages.Admit, spec: BehaviorSpec, arena: Arena) -> Lane:
        """Make the lane of agents that learn."""
        settings, start = self._settings, self._start
        rounds = Rounds(start.index, settings.count)
        lane = Lane(
            number=message.lane,
            behavior=spec.behavior,
            policy=self._policies.policy(spec, message.network_settings, message.squashed, message.device),
            tracker=Tracker(arena, message.time_horizon, rounds),
            rounds=rounds,
            rng=np.random.default_rng([settings.seed, start.index, start.generation, message.lane]),
            low_blocks=message.low_blocks,
            ticks=(start.generation * settings.count + start.index) << 32,
            noise=PinkNoise(spec.actions.continuous_size) if message.pink_noise else None,
            schedule=lambda: self._schedule(lane),
        )
        return lane

    def opposition(self, message: messages.Admit, spec: BehaviorSpec, arena: Arena) -> OppositionLane:
        """Make the lane of teams that do not learn."""
        opponents = Opponents(self._policies.stacked(spec, message.network_settings, message.squashed, message.device))
        seed = [self._settings.seed, self._start.index, self._start.generation, message.lane, 1]
        lane = OppositionLane(
            number=message.lane,
            behavior=spec.behavior,
            opponents=opponents,
            observer=opponents,
            tracker=Tracker(arena, message.time_horizon, Rounds()),
            rounds=Rounds(),
            rng=np.random.default_rng(seed),
            low_blocks=0,
            recorded=False,
            schedule=lambda: self._schedule(lane),
        )
        return lane

    def assessment(
        self, message: messages.Admit, spec: BehaviorSpec, arena: Arena, weights: Sequence[FloatArray]
    ) -> AssessmentLane:
        """Make the lane of a behavior whose frozen policies are judged; each has its weights."""
        policies = [self._policies.policy(spec, **each, device=message.device) for each in message.assessment]
        for policy, flat in zip(policies, weights, strict=True):
            policy.load(flat)
        settings, start, sittings = self._settings, self._start, Sittings()
        seed = [settings.seed, settings.epoch, start.index, start.generation, message.lane]
        lane = AssessmentLane(
            number=message.lane,
            behavior=spec.behavior,
            policies=policies,
            sittings=sittings,
            observer=sittings,
            tracker=Tracker(arena, message.time_horizon, Rounds()),
            rounds=Rounds(),
            rng=np.random.default_rng(seed),
            low_blocks=0,
            recorded=False,
            version=0,
            schedule=lambda: self._schedule(lane),
        )
        return lane
