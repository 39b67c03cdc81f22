"""Rock, paper, scissors, where a win with rock counts double: each policy that prefers one move loses to another one.

ludus simulate python:examples/games/scissors.py --run scissors --env-arg tables=32

A zero-sum game of two players, with the value 0. In its only equilibrium a player shows rock, paper and scissors with
the probabilities 1/4, 1/2 and 1/4; a policy that learns in large steps to beat the newest opponent circles around it.
"""

from typing import Final

import numpy as np

from ludus.protocol.batches import Outcome
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder

ROCK, PAPER, SCISSORS = range(3)
PAYOFFS: Final = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
"""(3, 3): what the move of the row wins against the move of the column."""
EQUILIBRIUM: Final = np.array([0.25, 0.5, 0.25])


def exploitability(strategy: np.ndarray) -> float:
    """Return what the best answer to a strategy (3,) wins on average: 0 in the equilibrium, 2 against scissors.

    Both sides are alike, so that this is also half of NashConv (Lanctot et al. 2017, arXiv 1711.00832).
    """
    return float((PAYOFFS @ strategy).max())


class Scissors(Simulation):
    """Two players show their moves at once, at each table, again and again."""

    waits_for_all = True
    behaviors = tuple(
        BehaviorSpec(f"Scissors?team={team}", (ObservationSpec((1,)),), ActionSpec(0, (3,))) for team in (0, 1)
    )

    def __init__(self, tables: int = 1) -> None:
        self._tables = range(tables)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin a game at each table."""
        del start
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Compare the moves, and begin the next games."""
        moves = {(action.behavior, action.agent): int(action.discrete[0]) for action in actions}
        for table in self._tables:
            first, second = (moves[spec.name, table] for spec in self.behaviors)
            for spec, reward in zip(self.behaviors, (PAYOFFS[first, second], PAYOFFS[second, first]), strict=True):
                outcome = Outcome.WIN if reward > 0 else Outcome.LOSS if reward < 0 else Outcome.DRAW
                builder.end_episode(agent=table, observation=[0.0], reward=reward, outcome=outcome, behavior=spec.name)
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        for spec in self.behaviors:
            for table in self._tables:
                builder.request_decision(agent=table, observation=[1.0], behavior=spec.name)
