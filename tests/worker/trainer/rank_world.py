"""Two ranks in a test: this process and another one, with experience that is written where collectors write theirs."""

from typing import Any

import numpy as np
import torch

from ludus.collector.arena import Arena
from ludus.collector.segments import SEGMENT_DTYPE, Segments
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.rollout import Rollout
from worker.learning.build import Demonstrations, build_algorithm
from worker.trainer.ranks import Build, Ranks

CPU = torch.device("cpu")
SEED = 1


def build(section: ReinforcementConfig, spec: BehaviorSpec, seed: int = SEED) -> Any:
    """Return a new algorithm."""
    return build_algorithm(section, spec, CPU, seed, Demonstrations({}))


def write(arena: Arena, rollout: Rollout) -> Segments:
    """Write a rollout to the first blocks of an arena, as collectors do; return its segments."""
    records = np.zeros(rollout.segments, SEGMENT_DTYPE)
    fields = {"simulator": "simulators", "agent": "agents", "group": "groups", "episode": "episodes"}
    fields |= {"sequence": "sequences", "length": "lengths", "ending": "endings", "mates_alive": "mates_alive"}
    for field, name in {**fields, "successor_tick": "successor_ticks"}.items():
        records[field] = getattr(rollout, name).numpy()
    records["blocks"] = -(-records["length"] // arena.layout.rows)
    segments = Segments(records, np.arange(records["blocks"].sum(), dtype=np.int32))
    rows, behind = arena.rows_of(segments), arena.successor_rows_of(segments)
    for column, steps, following in zip(
        arena.observations, rollout.observations, rollout.next_observations, strict=True
    ):
        column[rows], column[behind] = steps.numpy(), following.numpy()
    for name in ("continuous", "discrete", "log_probs", "rewards", "group_rewards", "versions", "ticks"):
        getattr(arena, name)[rows] = getattr(rollout, name).numpy()
    for name in ("action_masks", "memories"):
        if getattr(rollout, name) is not None:
            getattr(arena, name)[rows] = getattr(rollout, name).numpy()
    return segments


class Pair:
    """One behavior in two ranks."""

    def __init__(self, ranks: Ranks, section: ReinforcementConfig, spec: BehaviorSpec, algorithm: Any = None) -> None:
        self.ranks, self.spec = ranks, spec
        self.algorithm: Any = build(section, spec) if algorithm is None else algorithm
        actor = self.algorithm.actor
        self.arena = Arena.create(spec, 4096, memory_size=actor.memory_size)
        self.order = Build(section, self.arena.layout, SEED, {}, self.algorithm.state_dict(), compiles=False)
        ranks.build(self.order, self.arena)

    def update(self, own: Rollout, other: Rollout, step: int) -> Any:
        """Learn in both ranks, each from its own rollout; return what rank 0 measured."""
        self.ranks.learn(self.spec.behavior, [write(self.arena, other)], step)
        self.ranks.wait_gathered()
        return self.ranks.update(self.algorithm, own, step)
