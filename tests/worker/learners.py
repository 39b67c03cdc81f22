"""Collectors that remember what they were asked, and an algorithm that does as it is told."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.collector.arena import Arena
from ludus.collector.commands import PolicySpec
from ludus.collector.messages import EPISODE_DTYPE
from ludus.collector.segments import Segments
from ludus.protocol.spec import BehaviorSpec
from worker.collectors.events import EpisodesEnded
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.networks.actor import Actor


def ended_episodes(behavior: str, **columns: Any) -> EpisodesEnded:
    """Return finished episodes with these columns of `EPISODE_DTYPE`; the others are 0."""
    records = np.zeros(len(next(iter(columns.values()))), EPISODE_DTYPE)
    for name, values in columns.items():
        records[name] = values
    return EpisodesEnded(behavior, 0, records)


class RecordingCollection:
    """What was asked of the collectors, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def admit(self, spec: BehaviorSpec, policy: PolicySpec, arena: Arena) -> None:
        self.calls.append(("admit", spec.name))

    def publish(self, behavior: str, version: int, weights: NDArray[np.float32]) -> None:
        self.calls.append(("publish", version))

    def grant(self, behavior: str, round_number: int, steps: int, ahead: int | None = None) -> None:
        self.calls.append(("grant", round_number, steps) if ahead is None else ("grant", round_number, steps, ahead))

    def grant_unrecorded(self, behavior: str) -> None:
        self.calls.append(("unrecorded",))

    def reclaim(self, behavior: str, segments: Segments) -> None:
        self.calls.append(("reclaim", len(segments.blocks)))

    def take(self) -> list[tuple[Any, ...]]:
        """Return what was asked since the last call."""
        calls, self.calls = self.calls, []
        return calls


class ScriptedAlgorithm:
    """Its updates end as the script says: learned, nothing learned, all steps too old, or taken back."""

    def __init__(self, script: Sequence[str], steps: int = 10) -> None:
        self.version = 0
        self.steps_of_updates: list[tuple[int, int]] = []
        """(steps of the rollout, the policy's step) of each update."""
        self._script = list(script)
        self._steps = steps

    @property
    def actor(self) -> Actor:
        raise NotImplementedError

    def round_steps(self) -> int:
        return self._steps

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        self.steps_of_updates.append((rollout.steps, step))
        match self._script.pop(0):
            case "learned":
                self.version += 1
                return {"Losses/Value Loss": 1.0}
            case "nothing":
                return None
            case "stale":
                return {"Policy/Stale Share": 1.0}
            case _:
                raise Diverged("gradient", 3)

    def reconfigure(self, config: Any) -> None:
        self.config = config

    def flat_weights(self) -> NDArray[np.float32]:
        return np.zeros(3, np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
