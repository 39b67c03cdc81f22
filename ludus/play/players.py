"""Built-in players without a server. `ludus.play.model` has the player with an exported model.

Legend: N agents, C continuous actions, D discrete branches, K choices of all branches together.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from ludus.protocol.batches import ActionBatch, BehaviorBatch, DecisionBatch, Floats, Ints
from ludus.protocol.spec import ActionSpec

_STREAM: Final = 0x5C0E
"""Keeps the draws of players apart from those of a game that is seeded with the same number."""


class Player(ABC):
    """Plays all agents of one announced behavior."""

    @abstractmethod
    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        """Return the agents' actions: (N, C) in [-1, 1] and (N, D)."""

    def forget(self, agents: Iterable[int]) -> None:  # noqa: B027  most players remember nothing
        """Clear the memory of agents whose episodes have ended."""

    def begin(self, seed: int | None) -> None:  # noqa: B027  likewise
        """Clear all episodes, and seed the generator if there are both a seed and a generator."""


class RandomPlayer(Player):
    """Chooses evenly among the allowed choices; continuous actions evenly in [-1, 1]."""

    def __init__(self, actions: ActionSpec, seed: int = 0) -> None:
        self._actions = actions
        self.begin(seed)

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        """Draw the actions."""
        count = len(decisions.agent_ids)
        continuous = self._random.uniform(-1.0, 1.0, (count, self._actions.continuous_size)).astype(np.float32)
        lots = self._random.random((count, self._actions.mask_size))
        if decisions.action_masks is not None:
            lots[decisions.action_masks == 0] = -1.0
        discrete = np.zeros((count, len(self._actions.discrete_branches)), np.int32)
        start = 0
        for branch, size in enumerate(self._actions.discrete_branches):
            discrete[:, branch] = lots[:, start : start + size].argmax(axis=1)
            start += size
        return continuous, discrete

    def begin(self, seed: int | None) -> None:
        """Seed the generator; without a seed, do nothing."""
        if seed is not None:
            self._random = np.random.default_rng((_STREAM, seed))


def answer(players: Mapping[str, Player], batches: Iterable[BehaviorBatch]) -> list[ActionBatch]:
    """Return the actions of the announced behaviors that have a player."""
    answers = []
    for name, decisions, terminals in batches:
        player = players.get(name)
        if player is None:
            continue
        if terminals is not None:
            player.forget(terminals.agent_ids.tolist())
        if decisions is not None:
            answers.append(ActionBatch(name, decisions.agent_ids, *player.act(decisions)))
    return answers
