"""A corridor that a team of two leaves only if one of them gives its life.

    plate . . . . | exit        the door | opens for good when somebody steps on the plate

Whoever steps on the plate dies at once and loses `PRICE` of its own. When somebody reaches the exit, everybody who is
still alive gets a group reward of 1 and the attempt is over. So the best that a team can earn is 1 - `PRICE`, and the
one who dies never sees any of it: an agent that learns from its own rewards and its group's, as long as it lives, must
learn not to step on the plate. That is what posthumous credit is for (Cohen et al. 2021, section 4).
"""

import numpy as np

from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec

CELLS = 6
PLATE, EXIT = 0, CELLS - 1
STARTS = (2, 3)
PRICE = 0.2
LIMIT = 20
"""Ticks of an attempt before it is cut short."""


class Corridor:
    """Many corridors side by side, a group in each. An agent sees where it is, and whether the door is open."""

    def __init__(self, corridors: int = 16, *, grouped: bool = True) -> None:
        """Without `grouped` the game does not say who belongs together, for a negative control."""
        self.grouped = grouped
        self.spec = BehaviorSpec("Runner", (ObservationSpec((CELLS + 1,), "place and door"),), ActionSpec(0, (3,)))
        self.cells = np.tile(np.array(STARTS), (corridors, 1))  # (corridors, 2)
        self.alive = np.ones((corridors, 2), bool)
        self.opened = np.zeros(corridors, bool)
        self.ticks = np.zeros(corridors, np.int64)
        self.escaped: list[bool] = []
        """Of each attempt that finished since `score` was asked for last, whether somebody left the corridor."""

    def begin(self) -> BehaviorBatch:
        """Return the first message."""
        return BehaviorBatch(self.spec.name, self._decisions(np.zeros(self.alive.shape)), None)

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        """Return the message that answers the actions of all agents that were asked, in the order of their ids."""
        moves = np.zeros(self.alive.shape, np.int64)
        moves[self.alive] = discrete[:, 0] - 1
        acted = self.alive.copy()
        wall = np.where(self.opened, EXIT, EXIT - 1)[:, None]
        self.cells = np.clip(self.cells + moves, PLATE, wall)
        self.ticks += 1

        dead = acted & (self.cells == PLATE)
        self.opened |= dead.any(1)
        escaped = (acted & (self.cells == EXIT)).any(1)
        late = self.ticks >= LIMIT
        alive = acted & ~dead
        over = escaped | late | ~alive.any(1)
        ended = dead | (alive & over[:, None])
        rewards = np.where(dead, -PRICE, 0.0)
        group_rewards = np.where(alive & escaped[:, None], 1.0, 0.0)
        truncated = alive & (late & ~escaped)[:, None]

        terminals = self._terminals(ended, rewards, group_rewards, truncated) if ended.any() else None
        self.alive = alive & ~over[:, None]
        self.escaped += escaped[over].tolist()
        self.cells[over] = STARTS
        self.alive[over] = True
        self.opened[over] = False
        self.ticks[over] = 0
        return BehaviorBatch(self.spec.name, self._decisions(np.zeros(self.alive.shape)), terminals)

    def score(self) -> float:
        """Return the share of successful attempts among those that finished since the last call."""
        escaped, self.escaped = self.escaped, []
        return float(np.mean(escaped)) if escaped else 0.0

    def _decisions(self, rewards: Array) -> DecisionBatch:
        who = self.alive
        return DecisionBatch(
            self._ids(who), rewards[who].astype(np.float32), (self._seen(who),), None, self._groups(who), None
        )

    def _terminals(self, who: Array, rewards: Array, group_rewards: Array, truncated: Array) -> TerminalBatch:
        return TerminalBatch(
            self._ids(who),
            rewards[who].astype(np.float32),
            (self._seen(who),),
            truncated[who],
            self._groups(who),
            group_rewards[who].astype(np.float32),
        )

    def _ids(self, who: Array) -> Array:
        return np.flatnonzero(who).astype(np.int32)

    def _groups(self, who: Array) -> Array:
        return (np.nonzero(who)[0] + 1).astype(np.int32) * np.int32(self.grouped)

    def _seen(self, who: Array) -> Array:
        places = np.eye(CELLS, dtype=np.float32)[self.cells[who]]
        doors = np.broadcast_to(self.opened[:, None], who.shape)[who]
        return np.concatenate([places, doors[:, None].astype(np.float32)], 1)
