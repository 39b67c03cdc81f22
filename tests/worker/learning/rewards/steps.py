"""Makers of transitions and of what experts show, without any file."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ludus.collector.heads import HEADS
from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import random_rollout
from worker.experience.transitions import Transitions, transitions_of

CPU = torch.device("cpu")


def random_transitions(spec: BehaviorSpec, steps: int = 64, seed: int = 1) -> Transitions:
    """Steps of any behavior, in four segments."""
    rollout = random_rollout(spec, [steps // 4] * 4, np.random.default_rng(seed))
    return transitions_of(rollout, CPU, HEADS["gaussian"])


def single_steps(
    observations: Tensor,
    following: Tensor | None = None,
    *,
    continuous: Tensor | None = None,
    discrete: Tensor | None = None,
    terminated: Tensor | None = None,
) -> Transitions:
    """Steps of an agent that sees one vector, each for itself; without `following` it sees the same again."""
    steps = len(observations)
    nothing = torch.zeros(steps, dtype=torch.bool)
    return Transitions(
        observations=[torch.cat([observations, observations if following is None else following])],
        index=torch.arange(steps),
        next_index=torch.arange(steps, 2 * steps),
        continuous=torch.zeros(steps, 0) if continuous is None else continuous,
        discrete=torch.zeros(steps, 0, dtype=torch.int64) if discrete is None else discrete,
        rewards=torch.zeros(steps),
        group_rewards=torch.zeros(steps),
        terminated=nothing if terminated is None else terminated,
        ended=nothing if terminated is None else terminated,
    )


@dataclass
class Expert:
    """Shows steps, as `worker.experience.demonstrations.DemonstrationBuffer` does."""

    transitions: Transitions

    def sample(self, size: int, generator: torch.Generator, /) -> Transitions:
        return self.transitions.select(torch.randint(self.transitions.steps, (size,), generator=generator))


def normals(steps: int, size: int, *, mean: float = 0.0, seed: int = 1) -> Tensor:
    """Normally distributed rows."""
    return torch.randn(steps, size, generator=torch.Generator().manual_seed(seed)) + mean
