"""Kuhn's poker (Kuhn 1950): three cards, one bet, and an equilibrium in which the worst card bluffs.

ludus simulate python:examples/games/kuhn_poker.py --run kuhn --env-arg tables=32

Each player puts in 1 and gets one of three cards. Player one (team 0) passes or bets 1; then player two does; a bet is
answered by a pass, which gives up, or by a bet, which shows the cards. Passes of both show them, too. Both choices are
always legal. An agent sees its card and what was done so far: with 12 information states there is nothing to remember.
The value is -1/18 for player one. In its equilibria player one bets the jack with a probability a, at most 1/3, and the
king with 3 a, and calls with the queen with a + 1/3; player two bluffs and calls with 1/3 (`equilibrium`).
"""

from collections.abc import Mapping
from itertools import permutations, product
from statistics import fmean
from typing import Final

import numpy as np

from ludus.protocol.batches import Outcome
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder

JACK, QUEEN, KING = CARDS = range(3)
PASS, BET = range(2)
HISTORIES: Final = ("", "p", "b", "pb")
"""What was done before a decision, p for a pass and b for a bet; player one decides in the first and the last one."""
STATES: Final = tuple(product(CARDS, HISTORIES))
"""The information states: the player's card, and what was done."""
VALUE: Final = -1 / 18
DEALS: Final = tuple(permutations(CARDS, 2))
Strategy = Mapping[tuple[int, str], float]
"""Information state -> the probability of a bet."""


def winnings(cards: tuple[int, int], history: str) -> int | None:
    """Return what player one wins; None while the hand goes on."""
    if history in HISTORIES:
        return None
    if history.endswith("bp"):  # one gives up
        return 1 if history == "bp" else -1
    stake = 2 if history.endswith("bb") else 1
    return stake if cards[0] > cards[1] else -stake


def observation(card: int, history: str) -> np.ndarray:
    """Return what an agent sees, (7,): its card of three and the history of four, each as a one among zeros."""
    seen = np.zeros(7, np.float32)
    seen[[card, 3 + HISTORIES.index(history)]] = 1.0
    return seen


def equilibrium(bluffs: float) -> Strategy:
    """Return the equilibrium in which player one bets the jack with this probability, at most 1/3."""
    first = {"": (bluffs, 0.0, 3 * bluffs), "pb": (0.0, bluffs + 1 / 3, 1.0)}
    second = {"p": (1 / 3, 0.0, 1.0), "b": (0.0, 1 / 3, 1.0)}
    return {(card, history): (first | second)[history][card] for card, history in STATES}


def value(first: Strategy, second: Strategy) -> float:
    """Return what player one wins on average, if these two strategies play."""

    def below(cards: tuple[int, int], history: str) -> float:
        won = winnings(cards, history)
        if won is not None:
            return won
        player = len(history) % 2
        bets = (first, second)[player][cards[player], history]
        return bets * below(cards, f"{history}b") + (1.0 - bets) * below(cards, f"{history}p")

    return fmean(below(cards, "") for cards in DEALS)


def exploitability(strategy: Strategy) -> float:
    """Return what best answers win against a strategy, as the mean over both seats: 0 in an equilibrium.

    That is half of NashConv (Lanctot et al. 2017, arXiv 1711.00832). A best answer is the best of the 64 pure
    strategies of a seat.
    """
    seats = [[state for state in STATES if len(state[1]) % 2 == player] for player in (0, 1)]
    pure = [[dict(zip(states, bets, strict=True)) for bets in product((0.0, 1.0), repeat=6)] for states in seats]
    return (max(value(one, strategy) for one in pure[0]) - min(value(strategy, two) for two in pure[1])) / 2


class KuhnPoker(Simulation):
    """Hands of poker, one after the other at each table. Team 0 is always player one."""

    waits_for_all = True
    behaviors = tuple(
        BehaviorSpec(f"KuhnPoker?team={team}", (ObservationSpec((7,)),), ActionSpec(0, (2,))) for team in (0, 1)
    )

    def __init__(self, tables: int = 1) -> None:
        self._tables = range(tables)
        self._random = np.random.default_rng()
        self._cards: dict[int, tuple[int, int]] = {}
        self._histories: dict[int, str] = {}

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Deal at each table."""
        if start.first:
            self._random = np.random.default_rng(start.seed)
        for table in self._tables:
            self._deal(builder, table)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Pass or bet, and ask the other player or deal anew."""
        for action in actions:
            table = action.agent
            history = self._histories[table] = self._histories[table] + "pb"[int(action.discrete[0])]
            won = winnings(self._cards[table], history)
            if won is None:
                self._ask(builder, table)
                continue
            for spec, reward in zip(self.behaviors, (won, -won), strict=True):
                outcome = Outcome.WIN if reward > 0 else Outcome.LOSS
                last = np.zeros(7, np.float32)
                builder.end_episode(agent=table, observation=last, reward=reward, outcome=outcome, behavior=spec.name)
            self._deal(builder, table)

    def _deal(self, builder: StepBuilder, table: int) -> None:
        self._cards[table] = DEALS[int(self._random.integers(len(DEALS)))]
        self._histories[table] = ""
        self._ask(builder, table)

    def _ask(self, builder: StepBuilder, table: int) -> None:
        history = self._histories[table]
        player = len(history) % 2
        seen = observation(self._cards[table][player], history)
        builder.request_decision(agent=table, observation=seen, behavior=self.behaviors[player].name)
