"""One interface for PettingZoo's two kinds of games: which player acts next, and whose episode has ended.

In an `AECEnv` one player acts at a time, in a `ParallelEnv` all of them do. Rewards are those since the player's
previous action, as PettingZoo's `last()` has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

PlayerId = Hashable
"""What a game calls a player: mostly text."""


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
    """What a game says until it needs actions, or is over."""

    asks: Sequence[Ask] = ()
    """Nobody: the game is over."""
    ends: Sequence[End] = ()


class Game(ABC):
    """One game of either kind."""

    @abstractmethod
    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Abandon the game and begin it again."""

    @abstractmethod
    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Carry out the actions of everybody who was asked, and play on."""

    @abstractmethod
    def close(self) -> None:
        """Release what the game holds."""


class AECGame(Game):
    """A game in which one player acts at a time."""

    def __init__(self, env: AECEnv[Any, Any, Any]) -> None:
        self._env = env
        self._seen: dict[PlayerId, Any] = {}
        """What each player saw last, for games that show nothing at the end."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Begin, and play on to the first player."""
        self._seen.clear()
        self._env.reset(seed=seed, options=options)
        return self._play_on()

    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Let the player whose turn it is act."""
        self._env.step(actions[self._env.agent_selection])
        return self._play_on()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _play_on(self) -> Moment:
        """Take leave of the players whose part is over, until one has to act: PettingZoo calls each of them once."""
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
        self._env = env
        self._seen: dict[PlayerId, Any] = {}
        """What each of the players who have to act was shown."""
        self._known: set[PlayerId] = set()
        """All who were in the game, also those who have left it."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Begin."""
        observations, infos = self._env.reset(seed=seed, options=options)
        self._seen = {player: observations[player] for player in self._env.agents}
        self._known = set(self._seen)
        return Moment([Ask(player, seen, 0.0, infos.get(player, {})) for player, seen in self._seen.items()])

    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Let everybody act."""
        observations, rewards, terminations, truncations, infos = self._env.step(dict(actions))
        staying = [player for player in self._env.agents if not (terminations.get(player) or truncations.get(player))]
        # Who entered in this step may leave in it, too.
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

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
