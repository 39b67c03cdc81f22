"""A simulation that is recorded while it plays: observations, actions and rewards become a demonstration.

    connect(RecordedSimulation(Catch(), "catch.npz"), run="catch")

An episode is on disk as soon as it has ended (`ludus.demonstrations.recording`). Episodes that a reset or the end of
the connection cuts are kept without their last action, whose outcome is unknown.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from ludus.demonstrations.demonstration import Demonstration, stack_masks
from ludus.demonstrations.recording import Recorder
from ludus.paths import AnyPath
from ludus.protocol.batches import Array, BehaviorBatch, Bytes, DecisionBatch, TerminalBatch
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.simulation import ResetInfo, Simulation, SimulationWrapper
from ludus.sdk.steps import Actions, StepBuilder

MAX_PIECE_BYTES: Final = 1 << 28
"""An episode whose observations grow beyond this is written in several pieces, so that no game fills the memory."""


class RecordedSimulation(SimulationWrapper):
    """Wraps a simulation. Files that exist are continued.

    With one behavior the recording is `path`; with several, each has its own file, `STEM-BEHAVIOR.npz`.
    """

    def __init__(self, simulation: Simulation, path: AnyPath) -> None:
        super().__init__(simulation)
        self._log = EpisodeLog(path)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Cut all running episodes, and let the game begin new ones."""
        self._log.cut()
        self._simulation.reset(builder, start)
        self._look(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Record the actions, step the game, and record the outcome."""
        self._log.act(actions)
        self._simulation.step(builder, actions)
        self._look(builder)

    def close(self) -> None:
        """Cut all running episodes, finish the files and close the game."""
        try:
            self._log.close()
        finally:
            self._simulation.close()

    def _look(self, builder: StepBuilder) -> None:
        self._log.look(builder.batches(), {spec.name: spec for spec in (*self.behaviors, *builder.announced)})


class EpisodeLog:
    """Writes episodes to files while they are played, as `RecordedSimulation` says."""

    def __init__(self, path: AnyPath) -> None:
        self._path = Path(path)
        self._specs: dict[str, BehaviorSpec] = {}
        self._recorders: dict[str, Recorder] = {}
        """By behavior, without its team."""
        self._running: dict[tuple[str, int], _Episode] = {}
        """By announced name and agent."""
        self._finished: dict[str, list[Demonstration]] = {}
        """By behavior: the episodes of the next flush."""
        self._watched: Collection[str] | None = None
        self.from_start = True
        """Whether episodes that are seen first begin then; false where a recording begins in their middle."""

    @property
    def files(self) -> list[Path]:
        """The files that were written."""
        return [self._file(behavior) for behavior in self._recorders]

    def watch(self, names: Collection[str]) -> None:
        """Record these announced behaviors only, from now on."""
        self._watched = names

    def act(self, actions: Actions) -> None:
        """Record the actions of agents."""
        for action in actions:
            episode = self._running.get((action.behavior, action.agent))
            if episode is not None:
                episode.act(action.continuous, action.discrete)

    def look(self, batches: Iterable[BehaviorBatch], specs: Mapping[str, BehaviorSpec]) -> None:
        """Record a step of the game; `specs` has every behavior that it has announced."""
        self._specs.update(specs)
        for name, decisions, terminals in batches:
            if self._watched is not None and name not in self._watched:
                continue
            if terminals is not None:
                self._end(name, terminals)
            if decisions is not None:
                self._decide(name, decisions)
        self._flush()

    def cut(self) -> None:
        """End running episodes, and keep their steps."""
        for (name, _), episode in self._running.items():
            self._keep(name, episode.demonstration(None, terminated=False, truncated=False))
        self._running.clear()
        self._flush()

    def discard(self) -> None:
        """Discard running episodes."""
        self._running.clear()

    def close(self) -> None:
        """End running episodes, keep their steps, and finish the files."""
        self.cut()
        for recorder in self._recorders.values():
            recorder.close()

    def _end(self, name: str, batch: TerminalBatch) -> None:
        for row, agent in enumerate(batch.agent_ids.tolist()):
            episode = self._running.pop((name, agent), None)
            if episode is None:
                continue
            episode.earn(float(batch.rewards[row]), _at(batch.group_rewards, row))
            final = tuple(values[row].copy() for values in batch.observations)
            truncated = bool(batch.truncated[row])
            self._keep(name, episode.demonstration(final, terminated=not truncated, truncated=truncated))

    def _decide(self, name: str, batch: DecisionBatch) -> None:
        for row, agent in enumerate(batch.agent_ids.tolist()):
            observation = tuple(values[row].copy() for values in batch.observations)
            mask = None if batch.action_masks is None else batch.action_masks[row].copy()
            episode = self._running.get((name, agent))
            if episode is None:
                episode = self._running[name, agent] = _Episode(self._specs[name], self.from_start)
            else:
                episode.earn(float(batch.rewards[row]), _at(batch.group_rewards, row))
                if episode.bytes > MAX_PIECE_BYTES:
                    self._keep(name, episode.demonstration(observation, terminated=False, truncated=False))
                    episode = self._running[name, agent] = _Episode(self._specs[name], from_start=False)
            episode.see(observation, mask, group=int(_at(batch.group_ids, row)))

    def _keep(self, name: str, demonstration: Demonstration | None) -> None:
        if demonstration is not None:
            self._finished.setdefault(self._specs[name].behavior, []).append(demonstration)

    def _flush(self) -> None:
        finished, self._finished = self._finished, {}
        for behavior, demonstrations in finished.items():
            if behavior not in self._recorders:
                self._recorders[behavior] = Recorder(self._file(behavior))
            self._recorders[behavior].flush(demonstrations)

    def _file(self, behavior: str) -> Path:
        if len({spec.behavior for spec in self._specs.values()}) == 1:
            return self._path
        return self._path.with_stem(f"{self._path.stem}-{re.sub(r'[^0-9A-Za-z_.-]', '_', behavior)}")


@dataclass
class _Episode:
    """An episode in the making, or a piece of one."""

    spec: BehaviorSpec
    from_start: bool = True
    observations: list[tuple[Array, ...]] = field(default_factory=list)
    """At which an action was asked for; with `masks` and `groups` beside them."""
    masks: list[Bytes | None] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    continuous: list[Array] = field(default_factory=list)
    """One per observation that was answered: as many, or one less."""
    discrete: list[Array] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """One per action whose outcome is known."""
    group_rewards: list[float] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of the observations."""
        sizes = (prod(part.shape) * np.dtype(part.dtype).itemsize for part in self.spec.observations)
        return len(self.observations) * sum(sizes)

    def see(self, observation: tuple[Array, ...], mask: Bytes | None, group: int) -> None:
        """Record the observation at which the agent asks for an action."""
        self.observations.append(observation)
        self.masks.append(mask)
        self.groups.append(group)

    def act(self, continuous: Array, discrete: Array) -> None:
        """Record the action."""
        if len(self.continuous) < len(self.observations):
            self.continuous.append(continuous.copy())
            self.discrete.append(discrete.copy())

    def earn(self, reward: float, group_reward: float) -> None:
        """Record the reward of the last action; of the action before, if the agent ended before it was answered."""
        if len(self.rewards) < len(self.continuous):
            self.rewards.append(reward)
            self.group_rewards.append(group_reward)
        elif self.rewards:
            self.rewards[-1] += reward
            self.group_rewards[-1] += group_reward

    def demonstration(
        self, final: tuple[Array, ...] | None, *, terminated: bool, truncated: bool
    ) -> Demonstration | None:
        """Return the steps whose outcome is known; None if there is none.

        `final` is the last observation; None without an observation after that of the last known outcome.
        """
        steps = len(self.rewards)
        if not steps:
            return None
        final = self.observations[steps] if final is None else final
        ending = np.zeros((2, steps), np.bool_)
        ending[:, -1] = terminated, truncated
        groups = np.array(self.groups[:steps], np.int32)
        group_rewards = np.array(self.group_rewards, np.float32)
        return Demonstration(
            spec=self.spec,
            observations=tuple(np.stack(column) for column in zip(*self.observations[:steps], strict=True)),
            continuous=np.stack(self.continuous[:steps]),
            discrete=np.stack(self.discrete[:steps]),
            rewards=np.array(self.rewards, np.float32),
            terminated=ending[0],
            truncated=ending[1],
            starts=np.zeros(1, np.int64),
            final_observations=tuple(values[None] for values in final),
            from_start=np.array([self.from_start]),
            group_rewards=group_rewards if group_rewards.any() else None,
            group_ids=groups if groups.any() else None,
            action_masks=stack_masks(self.masks[:steps], self.spec),
        )


def _at(column: Array | None, row: int) -> float:
    """Return an entry of a column that may be missing: 0 then."""
    return 0.0 if column is None else float(column[row])
