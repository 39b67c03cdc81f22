"""What a behavior has played: its episodes, its rewards and, in self-play, its matches."""

from collections import deque
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any, Final

import numpy as np

from ludus.collector.segments import SegmentEnd
from server.ladders.refs import PlayedMatch
from worker.experience.rollout import Rollout

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
    """Returns of the first ones."""
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def add(self, episode_return: float, length: int) -> None:
        """Count an episode that ended."""
        known = self.count > 0
        self.count += 1
        self.paid += episode_return != 0
        self.least = min(self.least, episode_return) if known else episode_return
        self.greatest = max(self.greatest, episode_return) if known else episode_return
        self.shortest = min(self.shortest, length) if known else length
        self.longest = max(self.longest, length)
        (self.first if len(self.first) < FIRST else self.newest).append(episode_return)

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

    def add(self, sample: Rollout) -> None:
        """Look at some steps."""
        rewards = (sample.rewards + sample.group_rewards).numpy()
        least, greatest = float(rewards.min()), float(rewards.max())
        self.least = min(self.least, least) if self.steps else least
        self.greatest = max(self.greatest, greatest) if self.steps else greatest
        self.steps += sample.steps
        values, counts = np.unique(rewards, return_counts=True)
        told = rewards != values[counts.argmax()]
        told[(sample.lengths.cumsum(0) - 1).numpy()[sample.endings.numpy() == SegmentEnd.TERMINATED]] = True
        self.events += int(told.sum())
        paid = rewards[rewards != 0].astype(np.float64)
        if len(paid):
            self.size = float(f"{sqrt(float((paid**2).mean())):.6g}")


@dataclass
class Matches:
    """The matches of self-play, as the team that learns saw them, and those of its opponents."""

    count: int = 0
    drawn: int = 0
    truncated: int = 0
    rated: int = 0
    won: int = 0
    opponents: int = 0
    """Episodes of opponents that ended."""
    opponents_won: int = 0

    def add(self, match: PlayedMatch) -> None:
        """Count a match."""
        self.count += 1
        self.drawn += match.outcome == "draw"
        self.won += match.outcome == "win"
        self.truncated += match.truncated
        self.rated += match.rated


@dataclass
class Played:
    """All of it."""

    episodes: Episodes = field(default_factory=Episodes)
    rewards: Rewards = field(default_factory=Rewards)
    matches: Matches = field(default_factory=Matches)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = asdict(self)
        state["episodes"]["newest"] = list(self.episodes.newest)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the result of `state_dict`."""
        episodes = state["episodes"]
        self.episodes = Episodes(**{**episodes, "newest": deque(episodes["newest"], maxlen=NEWEST)})
        self.rewards, self.matches = Rewards(**state["rewards"]), Matches(**state["matches"])
