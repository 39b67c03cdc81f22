"""The parts of an assessment: evaluation batches, and the games in them.

For a *batch* a simulator is reset, with the batch's seed where it takes one. The first episode of each agent (or group)
that asks for an action in the first message after it is a game of the batch. Later episodes, while others of the batch
go on, do not count. So the games that count are fixed before their results are known, and short games have the same
weight as long ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ludus.collector.messages import EndedGame
from server.ladders.refs import Outcome

Verdict = Literal["pass", "fail", "undecided"]
MAX_SEED = 2**24
"""Seeds travel as float32, which has gaps beyond."""


@dataclass(frozen=True, slots=True)
class EvaluationBatch:
    """The games that a simulator plays next."""

    number: int
    """Counts from 0: batches are counted in this order, whichever ends first."""
    team: int | None
    """Place, from 0, of the candidate's team among the teams of the game; None: it plays alone, or
    CHAMPION_ALONE."""
    seed: int | None
    """The source of the episodes' seeds; None where simulators take none."""


Counted = tuple[int, int, Outcome]
"""A game against another policy that counts: its number, from 1, over all attempts; the place of the candidate's team;
the candidate's outcome."""


class Evaluator(ABC):
    """Assigns the sides of an assessment, counts its games, and decides when there are enough."""

    teams: int
    """How many teams a simulator must bring."""

    def __init__(self, seed: int, next_batch: int) -> None:
        """`seed` is the run's."""
        self._seed = seed
        self.next_batch = next_batch
        """Number of the batch that is to be counted next."""

    @property
    @abstractmethod
    def verdict(self) -> Verdict | None:
        """The verdict, once there are enough games."""

    @abstractmethod
    def batch(self, number: int) -> EvaluationBatch:
        """Return the batch of this number."""

    @abstractmethod
    def count(self, batch: EvaluationBatch, games: Sequence[EndedGame]) -> Sequence[Counted]:
        """Count the games of `next_batch`; return those against another policy that count now."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Return the present result, for people and programs: JSON values."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state with which another attempt continues: JSON values."""

    @abstractmethod
    def sentence(self) -> str:
        """Return the result as a sentence."""


def seed_of(run_seed: int, number: int) -> int:
    """Return the seed of a batch or a pair, fixed by the run's seed."""
    return int(np.random.SeedSequence([run_seed, number]).generate_state(1)[0]) % MAX_SEED
