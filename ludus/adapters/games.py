"""One interface for PettingZoo's two kinds of games: the next player to act, and the episodes that have ended.

In an `AECEnv` one player acts at a time, in a `ParallelEnv` all of them do. Rewards are those since the player's
previous action, as PettingZoo's `last()` has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pettingzoo import ParallelEnv

PlayerId = Hashable
"""The game's name of a player: usually text."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A player has to act."""

    player: PlayerId
    observation: Any
    reward: float
    info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """A player's episode has ended."""

    player: PlayerId
    observation: Any
    """The final one, copied: games may reuse their arrays for the next episode."""
    reward: float
    truncated: bool
    """False where the task itself ended, even in the step in which a limit was reached."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The events of a game until it needs actions, or is over."""

    asks: Sequence[Ask] = ()
    """Empty: the game is over."""
    ends: Sequence[End] = ()


class Game(ABC):
    """One game of either kind."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._seen: dict[PlayerId, Any] = {}
        """Last observation of each player, for games that have none at the end."""

    @abstractmethod
    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Abandon the game and begin it again."""

    @abstractmethod
    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Carry out the actions of all players that were asked, and continue."""

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class AECGame(Game):
    """A game in which one player acts at a time."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Begin, and continue to the first player."""
        self._seen.clear()
        self._env.reset(seed=seed, options=options)
        return self._play_on()

    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Carry out the action of the player whose turn it is."""
        self._env.step(actions[self._env.agent_selection])
        return self._play_on()

    def _play_on(self) -> Moment:
        """Step the players whose episode has ended, which PettingZoo asks for once each, until a player has to act."""
        ends: list[End] = []
        while self._env.agents:
            player = self._env.agent_selection
            observation, reward, terminated, truncated, info = self._env.last()
            observation = self._seen.get(player) if observation is None else observation
            if not (terminated or truncated):
                self._seen[player] = observation
                return Moment([Ask(player, observation, float(reward), info)], ends)
            ends.append(End(player, deepcopy(observation), float(reward), truncated=not terminated))
            self._env.step(None)
        return Moment(ends=ends)


class ParallelGame(Game):
    """A game in which all players act at once. Some may leave it before the others, or enter it late."""

    def __init__(self, env: ParallelEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._known: set[PlayerId] = set()
        """All players of the game, including those that have left it."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Begin."""
        observations, infos = self._env.reset(seed=seed, options=options)
        self._seen = {player: observations[player] for player in self._env.agents}
        self._known = set(self._seen)
        return Moment([Ask(player, seen, 0.0, infos.get(player, {})) for player, seen in self._seen.items()])

    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Carry out the actions of all players."""
        observations, rewards, terminations, truncations, infos = self._env.step(dict(actions))
        staying = [player for player in self._env.agents if not (terminations.get(player) or truncations.get(player))]
        # A player that entered in this step may also leave in it.
        here = [*self._seen, *(player for player in terminations if player not in self._known)]
        ends = [
            End(
                player,
                deepcopy(observations.get(player, self._seen.get(player))),
                float(rewards.get(player, 0.0)),
                truncated=not terminations.get(player),
            )
            for player in here
            if player not in staying
        ]
        self._known.update(here)
        self._seen = {player: observations[player] for player in staying}
        asks = [
            Ask(player, seen, float(rewards.get(player, 0.0)), infos.get(player, {}))
            for player, seen in self._seen.items()
        ]
        return Moment(asks, ends)
