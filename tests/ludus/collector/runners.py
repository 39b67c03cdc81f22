"""The runner that the tests' worlds are built around: one that learns, outside of a collector."""

from typing import Any

import numpy as np

from ludus.collector.arena import Arena
from ludus.collector.policy import Policy
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.runners import LearningRunner
from ludus.collector.step_quota import StepQuota


def learning_runner(
    behavior: str, policy: Policy, arena: Arena, horizon: int, quota: StepQuota, *, seed: int = 0, **fields: Any
) -> LearningRunner:
    """Return a runner that has all blocks of the arena. Its world calls `run`, and `fields` are the runner's own."""
    recorder = TrajectoryRecorder(arena, horizon, quota)
    recorder.segments.blocks = list(range(arena.layout.blocks))
    return LearningRunner(
        number=0,
        behavior=behavior,
        policy=policy,
        recorder=recorder,
        rng=np.random.default_rng(seed),
        low_blocks=0,
        request_turn=lambda _: None,
        **fields,
    )
