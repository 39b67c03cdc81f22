"""The team of ML-Agents' own end-to-end checks of POCA: walkers on lines of their own, each told to which end to go.

A step is at most 0.2 long and costs 0.01. Who arrives is out. Arriving at the wrong end costs 1.06 at once; the 1.06
for the right one is paid to the *group*, when its last walker arrives, by that walker's success: whoever is earlier
never sees it. So a team learns to arrive only if the early ones are credited posthumously.
"""

from collections.abc import Sequence

import numpy as np

from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.toys.walk import BEST, NUMBER, PENALTY, STEP, painted

GROUP = 7


class TeamWalk:
    """Each sees its goal, -1 or 1. Continuous: how far to go. Discrete: 0 goes down, 1 goes up."""

    def __init__(
        self, *, discrete: bool, sees: Sequence[ObservationSpec] = (NUMBER,), walkers: int = 2, seed: int = 1
    ) -> None:
        self.discrete, self.walkers = discrete, walkers
        actions = ActionSpec(discrete_branches=(2,)) if discrete else ActionSpec(1)
        self.spec = BehaviorSpec("Walk", tuple(sees), actions)
        self.returns: list[float] = []
        """What each walker would have earned alone, in the order of their arrivals."""
        self._rng = np.random.default_rng(seed)
        self._deal()

    def score(self) -> float:
        """Return the mean of the newest five returns; nothing is forgotten."""
        return float(np.mean(self.returns[-5:])) if self.returns else float("nan")

    def begin(self) -> BehaviorBatch:
        return BehaviorBatch("Walk", self._decisions(np.zeros(self.walkers)), None)

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        wishes = 2.0 * discrete[:, 0] - 1.0 if self.discrete else continuous[:, 0]
        who = self.walking.copy()
        self.positions[who] += np.clip(wishes, -STEP, STEP)
        arrived = who & (np.abs(self.positions) >= 1.0 - 1e-9)
        alone = np.where(arrived, BEST * np.sign(self.positions) * self.goals, -PENALTY)
        self.earned[who] += alone[who]
        self.returns += self.earned[arrived].tolist()
        self.walking &= ~arrived
        if not arrived.any():
            return BehaviorBatch("Walk", self._decisions(alone), None)
        over = not self.walking.any()
        # The last one's reward is the group's; those before it get what failure costs, or what a step does.
        rewards = np.zeros(self.walkers) if over else np.minimum(-PENALTY, alone)
        last = np.flatnonzero(arrived)[-1]
        group_rewards = np.where(over, alone[last], 0.0) * np.ones(self.walkers)
        ends = TerminalBatch(
            np.flatnonzero(arrived).astype(np.int32),
            rewards[arrived].astype(np.float32),
            self._see(arrived),
            np.zeros(int(arrived.sum()), bool),
            np.full(int(arrived.sum()), GROUP, np.int32),
            group_rewards[arrived].astype(np.float32),
        )
        if over:
            self._deal()
            alone = np.zeros(self.walkers)
        return BehaviorBatch("Walk", self._decisions(alone), ends)

    def _deal(self) -> None:
        self.goals = self._rng.choice([-1.0, 1.0], self.walkers)
        self.positions, self.earned = np.zeros(self.walkers), np.zeros(self.walkers)
        self.walking = np.ones(self.walkers, bool)

    def _see(self, who: Array) -> tuple[Array, ...]:
        return painted(self.spec.observations, self.goals[who])

    def _decisions(self, rewards: Array) -> DecisionBatch:
        who = self.walking
        ids = np.flatnonzero(who).astype(np.int32)
        return DecisionBatch(
            ids, rewards[who].astype(np.float32), self._see(who), None, np.full(len(ids), GROUP, np.int32), None
        )
