"""The monitor of one behavior's health: gathers evidence while it learns, and keeps the list of facts that hold.

Updates are looked at one by one, as numbers that are there anyway. Observations, rewards and actions are looked at in a
sample of each period (`Evidence.period`); then, and at the end, the facts are reviewed. A fact is over when `MISSES`
reviews in a row did not find it, or the last one. Nothing depends on the clock, so that a resumed run goes on with the
same facts.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ludus.config.trainer import ReinforcementConfig
from ludus.demonstrations import Demonstration
from ludus.play.checks.facts import Fact
from ludus.play.checks.influence import Score, free_steps, scores
from ludus.protocol.spec import BehaviorSpec
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.trainer.health.checks import facts_of
from worker.trainer.health.evidence import Evidence, steps_of

SAMPLE_STEPS, SHORT_SAMPLE_STEPS = 1024, 512
"""Most steps of a sample, and fewest: rounds that are shorter are collected until they are so many."""
SAMPLE_NUMBERS: Final = 4_000_000
"""Most numbers of a sample's observations: of pictures there are fewer steps."""
SCORES: Final = 20
"""How often a run compares actions with what followed, at most."""
MISSES: Final = 3


def whole_lengths(demonstration: Demonstration) -> NDArray[np.int64]:
    """Return the lengths of the episodes that were recorded from their beginning to their end."""
    lengths = demonstration.lengths
    last = demonstration.starts + lengths - 1
    ended = demonstration.terminated[last] | demonstration.truncated[last]
    return np.asarray(lengths[demonstration.from_start & ended], np.int64)


class HealthMonitor:
    """Watches one behavior."""

    def __init__(
        self, config: ReinforcementConfig, spec: BehaviorSpec, step: int = 0, *, has_lessons: bool = False
    ) -> None:
        """`step` is how far the behavior is; `has_lessons`: whether environment parameters change while it learns."""
        self.evidence = Evidence(spec, config, step, has_lessons)
        """Takes episodes and matches as they end."""
        self._most_steps = max(SAMPLE_NUMBERS // max(sum(sensor.size for sensor in spec.observations), 1), 1)
        """Of a sample."""
        self._sample: list[Rollout] = []
        """Rounds of a sample that is not full yet."""
        self._steps = 0
        """How many steps they have."""
        self._sampled = False
        """Whether this period has its sample."""
        self._next_review = 0
        self._next_scores = 0
        """Step from which actions are compared with what followed again: that costs the most."""
        self._facts: dict[str, Fact] = {}
        self._misses: dict[str, int] = {}
        self.reviews = 0
        """Counts the reviews of this attempt."""
        self._review()

    @property
    def facts(self) -> list[Fact]:
        """The facts that hold, in the order in which they were found."""
        return list(self._facts.values())

    def demonstrated(self, lengths: NDArray[np.int64]) -> None:
        """Take the lengths of episodes that GAIL was shown."""
        lengths = np.append(lengths, self.evidence.lengths)
        self.evidence.lengths = [int(lengths.min()), int(lengths.max())] if len(lengths) else []

    def experienced(self, rollout: Rollout, step: int) -> None:
        """Take a round that is about to be learned from, up to `step`."""
        self.evidence.step = step
        episodes = self.evidence.episodes
        if episodes.count > episodes.before:
            episodes.before, episodes.last_end = episodes.count, step
        if self._sampled:
            return
        self._sample.append(rollout)
        self._steps += rollout.steps
        if self._steps >= min(SHORT_SAMPLE_STEPS, self._most_steps):
            self._look_at_sample(min(SAMPLE_STEPS, self._most_steps))

    def _look_at_sample(self, most: int = SAMPLE_STEPS) -> None:
        first, *later = self._sample
        self._sample, self._steps, self._sampled = [], 0, True
        rounds = first.followed_by(*later) if later else first
        evidence, sample = self.evidence, steps_of(rounds.beginning(most))
        agents = np.unique(np.stack([rounds.simulators.numpy(), rounds.agents.numpy()]), axis=1).shape[1]
        evidence.agents = max(evidence.agents, agents)
        evidence.observed.add(sample)
        evidence.rewards.add(sample)
        evidence.free += free_steps(sample, evidence.spec.actions)
        if evidence.step >= self._next_scores:
            self._next_scores = evidence.step + evidence.config.max_steps // SCORES
            for name, score in scores(sample, evidence.spec.actions).items():
                evidence.influence.setdefault(name, Score()).add(sample.count, score)

    def updated(self, measured: Mapping[str, float], rollout: Rollout) -> None:
        """Take the measurements of an update. Raise `LimitCrossed` where a limit of the configuration says so."""
        evidence = self.evidence
        updates = evidence.updates
        drops_steps, disagrees = updates.drops_steps, updates.disagrees
        updates.add(measured)
        if (updates.drops_steps and not drops_steps) or (updates.disagrees and not disagrees):
            self._next_review = 0
        before = {name for name, sign in evidence.divergence.signs.items() if sign.since is not None}
        try:
            evidence.divergence.updated(evidence.config, measured, rollout.action_masks, rollout.steps, evidence.step)
        finally:
            signs = evidence.divergence.signs.items()
            if any(sign.since is not None and name not in before for name, sign in signs):
                self._next_review = 0

    def learned(self) -> None:
        """Review the facts, if that is due: after each round."""
        if self.evidence.step >= self._next_review:
            self._review()
            self._sampled = False

    def conclude(self) -> None:
        """Review the facts at the end of the run."""
        self.evidence.ended = True
        self._review()

    def reconfigure(self, config: ReinforcementConfig) -> None:
        """Go on with another section of the configuration."""
        self.evidence.config = config
        self._next_review = 0

    def _review(self) -> None:
        evidence = self.evidence
        if self._sample:
            self._look_at_sample()
        self.reviews += 1
        self._next_review = (evidence.step // evidence.period + 1) * evidence.period
        present = facts_of(evidence)
        for code in list(self._facts):
            misses = 0 if code in present else self._misses.pop(code, 0) + 1
            if misses >= MISSES or (misses and evidence.ended):
                del self._facts[code]
            elif misses:
                self._misses[code] = misses
            else:
                self._misses.pop(code, None)
        for code, fact in present.items():
            since = self._facts[code].since if code in self._facts else fact.since
            self._facts[code] = fact._replace(since=evidence.step if since is None else since)

    def state_dict(self) -> State:
        """Return the state for a checkpoint, so that nothing is found twice."""
        return self.evidence.state_dict() | {
            "sample": [part.state_dict() for part in self._sample],
            "sampled": self._sampled,
            "next_review": self._next_review,
            "next_scores": self._next_scores,
            "facts": [list(fact) for fact in self._facts.values()],
            "misses": dict(self._misses),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`."""
        self.evidence.load_state_dict(state)
        self._sample = [Rollout(**part) for part in state["sample"]]
        self._steps = sum(part.steps for part in self._sample)
        self._sampled, self._next_review = state["sampled"], state["next_review"]
        self._next_scores = state["next_scores"]
        self._facts = {fact[0]: Fact(*fact) for fact in state["facts"]}
        self._misses = dict(state["misses"])
