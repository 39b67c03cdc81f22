"""Episodes and rewards of one behavior, in a few numbers."""

from dataclasses import dataclass, field
from math import sqrt
from typing import Final

import numpy as np

from ludus.collector.segments import SegmentEnd
from ludus.play.checks.steps import Steps

FIRST: Final = 50
"""Episodes of the beginning, to which the newest are compared."""
NEWEST: Final = 100
LEAST: Final = 10
"""Fewest episodes of either that are compared."""
BETTER: Final = 2.0
"""Standard errors by which returns have to be above those of the beginning to count as better."""


@dataclass
class Episodes:
    """The episodes of the agents that learn."""

    count: int = 0
    last_end: int = 0
    """Step of the behavior after the round in which the newest ended."""
    before: int = 0
    """How many had ended before that round."""
    paid: int = 0
    """Those whose return is not 0."""
    least: float = 0.0
    greatest: float = 0.0
    """Of all returns."""
    shortest: int = 0
    longest: int = 0
    """Of all lengths, in decisions."""
    first: list[float] = field(default_factory=list)
    newest: list[float] = field(default_factory=list)
    """Returns of the first ones, and of the newest."""

    def add(self, episode_return: float, length: int) -> None:
        """Count an episode that ended."""
        if not self.count:
            self.least = self.greatest = episode_return
            self.shortest = length
        self.count += 1
        self.paid += episode_return != 0
        self.least, self.greatest = min(self.least, episode_return), max(self.greatest, episode_return)
        self.shortest, self.longest = min(self.shortest, length), max(self.longest, length)
        (self.first if len(self.first) < FIRST else self.newest).append(episode_return)
        del self.newest[:-NEWEST]

    def improved(self) -> bool | None:
        """Return whether the newest returns are better than those of the beginning; None if too few are known."""
        first, newest = np.array(self.first), np.array(self.newest)
        if len(newest) < LEAST:
            first, newest = np.split(first, [len(first) // 2])
        if len(first) < LEAST or len(newest) < LEAST:
            return None
        error = sqrt(float(first.var()) / len(first) + float(newest.var()) / len(newest))
        return float(newest.mean() - first.mean()) > max(BETTER * error, 1e-9)

    @property
    def mean(self) -> float:
        """Mean return of the newest episodes."""
        return float(np.mean(self.newest or self.first)) if self.count else 0.0


@dataclass
class Rewards:
    """The rewards of samples: those of the agents and of their groups together."""

    steps: int = 0
    events: int = 0
    """Steps whose reward is another one than the usual, or that terminate an episode."""
    least: float = 0.0
    greatest: float = 0.0
    size: float = 0.0
    """Root mean square of the last sample's rewards that are not 0."""

    def add(self, sample: Steps) -> None:
        """Look at some steps."""
        rewards = sample.rewards
        least, greatest = float(rewards.min()), float(rewards.max())
        self.least = min(self.least, least) if self.steps else least
        self.greatest = max(self.greatest, greatest) if self.steps else greatest
        self.steps += len(rewards)
        values, counts = np.unique(rewards, return_counts=True)
        is_event = rewards != values[counts.argmax()]
        is_event[(sample.lengths.cumsum() - 1)[sample.endings == SegmentEnd.TERMINATED]] = True
        self.events += int(is_event.sum())
        paid = rewards[rewards != 0].astype(np.float64)
        if len(paid):
            self.size = float(f"{sqrt(float((paid**2).mean())):.6g}")
