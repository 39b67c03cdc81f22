"""Watches a game that plays: gathers its steps as columns, and says what the checks find in them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, TypeAlias

import numpy as np

from ludus.collector.segments import SegmentEnd
from ludus.play.checks import facts
from ludus.play.checks.facts import Fact, holding
from ludus.play.checks.influence import Score, action_names, free_steps, scores
from ludus.play.checks.observed import Observed
from ludus.play.checks.played import Episodes, Rewards
from ludus.play.checks.steps import Steps
from ludus.protocol.batches import ActionBatch, Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import BehaviorSpec

Confirm: TypeAlias = Callable[[str], bool]
"""Says whether a part of the action, as `action_names` has it, is certainly ignored."""
SAMPLE_STEPS: Final = 768
"""Steps that are looked at together."""
SAMPLE_NUMBERS: Final = 4_000_000
"""Most numbers of a sample's observations: of pictures there are fewer steps."""


@dataclass
class _Segment:
    """Steps of one agent: those whose outcome is known, and at the end perhaps one that waits for it."""

    observations: list[tuple[Array, ...]] = field(default_factory=list)
    masks: list[Array | None] = field(default_factory=list)
    continuous: list[Array] = field(default_factory=list)
    discrete: list[Array] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ending: SegmentEnd = SegmentEnd.CUT
    successor: tuple[Array, ...] = ()


class BehaviorWatch:
    """Watches one behavior: the agents of all its teams."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec
        self.steps = 0
        """Decisions whose outcome is known."""
        self.agents = 0
        """Most agents that have asked."""
        self._episodes = Episodes()
        self._rewards = Rewards()
        self._observed = Observed(spec)
        self._influence: dict[str, Score] = {}
        self._free = 0
        self._acted = False
        """Whether actions were told, so that their influence can be judged."""
        self._open: dict[tuple[str, int], _Segment] = {}
        self._closed: list[_Segment] = []
        self._gathered = 0
        self._returns: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        most = SAMPLE_NUMBERS // max(sum(prod(part.shape) for part in spec.observations), 1)
        self._sample_steps = max(min(SAMPLE_STEPS, most), 1)

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        return self._episodes.count

    def decide(self, name: str, batch: DecisionBatch) -> None:
        """Take agents that ask for an action; `name` is unique to the game and the announced behavior."""
        totals = _totals(batch)
        for row, agent in enumerate(batch.agent_ids.tolist()):
            key = (name, agent)
            segment = self._open.setdefault(key, _Segment())
            observation = tuple(values[row].copy() for values in batch.observations)
            if segment.observations:
                self._outcome(key, segment, totals[row], observation)
            segment.observations.append(observation)
            segment.masks.append(None if batch.action_masks is None else batch.action_masks[row].copy())
        self.agents = max(self.agents, len(self._open))
        if self._gathered >= self._sample_steps:
            self._look()

    def end(self, name: str, batch: TerminalBatch) -> None:
        """Take agents whose episodes ended."""
        totals = _totals(batch)
        for row, agent in enumerate(batch.agent_ids.tolist()):
            key = (name, agent)
            segment = self._open.pop(key, None)
            if segment is None:
                continue
            observation = tuple(values[row].copy() for values in batch.observations)
            if segment.observations:
                self._outcome(key, segment, totals[row], observation)
                segment.ending = SegmentEnd.TRUNCATED if batch.truncated[row] else SegmentEnd.TERMINATED
                self._closed.append(segment)
            rewards = self._returns.pop(key, [])
            if rewards:
                self._episodes.add(float(np.sum(rewards)), len(rewards))
                self._episodes.last_end = self.steps

    def act(self, name: str, batch: ActionBatch) -> None:
        """Take the actions of agents that asked."""
        self._acted = True
        assert batch.agent_ids is not None
        for row, agent in enumerate(batch.agent_ids.tolist()):
            segment = self._open.get((name, agent))
            if segment is not None and len(segment.discrete) < len(segment.observations):
                segment.continuous.append(batch.continuous[row].copy())
                segment.discrete.append(batch.discrete[row].copy())

    def facts(self, confirm: Confirm | None = None) -> list[Fact]:
        """Return what the checks find in all steps so far.

        A part of the action is only found to be ignored if `confirm` says so, too.
        """
        if self._gathered:
            self._look()
        checks = (
            facts.endless(self._episodes, self.steps, self.agents, long=facts.LEAST_STEPS, late=False),
            facts.scale_of_observations(self._observed, normalize=None) if self.steps >= _FEW else None,
            facts.constant_observations(self._observed, flags=False),
            facts.constant_returns(self._episodes, self._rewards, late=True, early=False),
            facts.no_choice(self._rewards.steps, self._free),
            None if confirm is None or self._observed.is_blind() else self._ignored(confirm),
        )
        return [_of_few_steps(fact) for fact in holding(checks)]

    def _ignored(self, confirm: Confirm) -> Fact | None:
        """Return which parts of the action are ignored, by the regression and by `confirm`."""
        actions = self.spec.actions
        shares = {name: 1.0 for name in action_names(actions) if name.startswith("branch")}
        seems = facts.ignored_actions(actions, self._influence, shares)
        parts = [] if seems is None else [part for part in seems.figures["ignored"] if confirm(part)]
        return facts.ignored_actions(actions, {part: self._influence[part] for part in parts}, shares)

    def _outcome(self, key: tuple[str, int], segment: _Segment, reward: float, following: tuple[Array, ...]) -> None:
        """Take what followed an agent's last decision."""
        segment.rewards.append(reward)
        segment.successor = following
        self._returns[key].append(reward)
        self.steps += 1
        self._gathered += 1

    def _look(self) -> None:
        """Look at the steps that were gathered, and forget them."""
        segments = [*self._closed, *(segment for segment in self._open.values() if segment.rewards)]
        sample = _columns(segments, self.spec, acted=self._acted)
        self._observed.add(sample)
        self._rewards.add(sample)
        self._free += free_steps(sample, self.spec.actions)
        if self._acted and self.spec.observations:
            for name, score in scores(sample, self.spec.actions).items():
                self._influence.setdefault(name, Score()).add(sample.count, score)
        self._closed, self._gathered = [], 0
        for key, segment in self._open.items():  # the decision that waits for its outcome begins the next segment
            pending = len(segment.rewards)
            self._open[key] = _Segment(
                segment.observations[pending:],
                segment.masks[pending:],
                segment.continuous[pending:],
                segment.discrete[pending:],
            )


def _of_few_steps(fact: Fact) -> Fact:
    """Return a fact as it is to be taken where nothing was learned yet."""
    if fact.code != "returns_constant":
        return fact
    unless = "If only a skilled player earns more, add reward_signals.curiosity or demonstrations."
    return fact._replace(remedy=f"{fact.remedy} {unless}")


_FEW: Final = 100
"""Fewest steps from which sizes are judged."""


class GameWatch:
    """Watches all behaviors of a game."""

    def __init__(self) -> None:
        self.behaviors: dict[str, BehaviorWatch] = {}
        """By behavior, without its team."""

    @property
    def steps(self) -> int:
        """Decisions whose outcome is known: of the behavior that has the fewest."""
        return min((behavior.steps for behavior in self.behaviors.values()), default=0)

    @property
    def episodes(self) -> int:
        """Episodes of all behaviors that ended."""
        return sum(behavior.episodes for behavior in self.behaviors.values())

    def look(self, batches: Iterable[BehaviorBatch], specs: Mapping[str, BehaviorSpec], game: str = "") -> None:
        """Take a step of a game; `specs` has every behavior that it has announced, by name. Several games have ids."""
        for name, decisions, terminals in batches:
            spec = specs[name]
            watch = self.behaviors.setdefault(spec.behavior, BehaviorWatch(spec))
            if terminals is not None:
                watch.end(f"{game}/{name}", terminals)
            if decisions is not None:
                watch.decide(f"{game}/{name}", decisions)

    def act(self, actions: Iterable[ActionBatch], specs: Mapping[str, BehaviorSpec], game: str = "") -> None:
        """Take the actions that answer a step, in which each agent is named."""
        for batch in actions:
            self.behaviors[specs[batch.behavior].behavior].act(f"{game}/{batch.behavior}", batch)

    def facts(self, confirm: Confirm | None = None) -> list[tuple[str, Fact]]:
        """Return what the checks find, with the behavior; `confirm` as in `BehaviorWatch.facts`."""
        return [(name, fact) for name, watch in self.behaviors.items() for fact in watch.facts(confirm)]


def _totals(batch: DecisionBatch | TerminalBatch) -> list[float]:
    """Return the reward of each agent, with that of its group."""
    total = batch.rewards if batch.group_rewards is None else batch.rewards + batch.group_rewards
    totals: list[float] = total.tolist()
    return totals


def _columns(segments: Sequence[_Segment], spec: BehaviorSpec, *, acted: bool) -> Steps:
    """Return the steps of segments whose outcome is known. Choices were drawn evenly among the allowed ones."""
    actions = spec.actions
    counts = [len(segment.rewards) for segment in segments]
    pairs = list(zip(segments, counts, strict=True))
    rows = [observation for segment, count in pairs for observation in segment.observations[:count]]
    masks = [mask for segment, count in pairs for mask in segment.masks[:count]]
    total = len(rows)
    allowed: Array | None = None
    if any(mask is not None for mask in masks):
        everything = np.ones(actions.mask_size, np.uint8)
        allowed = np.stack([everything if mask is None else mask for mask in masks])
    continuous = np.zeros((total, actions.continuous_size), np.float32)
    discrete = np.zeros((total, len(actions.discrete_branches)), np.int32)
    if acted:
        continuous[:] = [values for segment, count in pairs for values in segment.continuous[:count]]
        discrete[:] = [values for segment, count in pairs for values in segment.discrete[:count]]
    choices = np.ones((total, actions.mask_size)) if allowed is None else allowed
    starts = np.cumsum((0, *actions.discrete_branches))[:-1]
    of_branches = np.add.reduceat(choices, starts, axis=1) if len(starts) else np.zeros((total, 0))
    log_probs = np.column_stack([np.zeros((total, actions.continuous_size)), -np.log(of_branches)])
    return Steps(
        observations=tuple(np.stack(column) for column in zip(*rows, strict=True)),
        successors=tuple(np.stack(column) for column in zip(*(segment.successor for segment in segments), strict=True)),
        lengths=np.array(counts, np.int64),
        endings=np.array([segment.ending for segment in segments], np.uint8),
        rewards=np.array([reward for segment in segments for reward in segment.rewards], np.float32),
        continuous=continuous,
        discrete=discrete,
        log_probs=log_probs.astype(np.float32),
        action_masks=allowed,
    )
