"""What assessments are made of: sittings, and the games that are played in them.

A *sitting* is one simulator's turn: it begins anew, with the sitting's seed where simulators take one, and the first
episode of each agent (or group) that asks in its first message is a game of the sitting. What it plays after that,
while others of the sitting go on, counts for nothing. So what counts is decided before anybody knows how it ends, and
short games weigh no more than long ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Outcome = Literal["win", "draw", "loss"]
MAX_SEED = 2**24
"""Seeds travel as float32, which has gaps beyond."""


@dataclass(frozen=True, slots=True)
class Sitting:
    """What a simulator is to play."""

    number: int
    """Counts from 0: sittings are counted in this order, whichever ends first."""
    team: int | None
    """Place, from 0, of the candidate's team among the teams of the game; None: there is one team only."""
    seed: int | None
    """What the episodes' seeds are made from; None where simulators take none."""


@dataclass(frozen=True, slots=True)
class Game:
    """One game of a sitting, from the candidate's side."""

    outcome: Outcome
    episode_return: float
    """Undiscounted sum of the agent's own rewards and its group's; of a group's members: the mean."""
    length: int
    """Decisions of one agent."""
    truncated: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """A game against another policy that counts."""

    number: int
    """Counts from 1, over all attempts."""
    place: int
    """Of the candidate's team."""
    outcome: Outcome
    """Of the candidate."""


class Judge(Protocol):
    """What an assessment is about: it says who sits where, counts games, and knows when there are enough."""

    teams: int
    """How many teams a simulator must bring."""

    @property
    def next_sitting(self) -> int:
        """Number of the sitting that is to be counted next."""

    @property
    def verdict(self) -> str | None:
        """`pass`, `fail` or `undecided`, once there are enough games."""

    def sitting(self, number: int) -> Sitting:
        """Return what the sitting of this number plays."""

    def count(self, sitting: Sitting, games: Sequence[Game]) -> Sequence[Counted]:
        """Count the games of `next_sitting`; return those against another policy that count now."""

    def result(self) -> Mapping[str, Any]:
        """Return where the assessment stands, for people and programs: JSON values."""

    def state(self) -> Mapping[str, Any]:
        """Return what another attempt needs to go on counting: JSON values."""

    def sentence(self) -> str:
        """Say how it ended."""


def seed_of(run_seed: int, number: int) -> int:
    """Return the seed of a sitting or a pair, fixed by the run's seed."""
    return int(np.random.SeedSequence([run_seed, number]).generate_state(1)[0]) % MAX_SEED
