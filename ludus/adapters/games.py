"""One interface for PettingZoo's two kinds of games: the next player to act, and the episodes that have ended.

In an `AECEnv` one player acts at a time, in a `ParallelEnv` all of them do. Rewards are those since the player's
previous action, as PettingZoo's `last()` has them. Observations are read, and copied, at the moment of the answer:
games use their arrays again. What cannot be used raises GameMistake.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from pettingzoo import ParallelEnv

from ludus.adapters.assignment import PlayerId, View
from ludus.adapters.spaces import Parts
from ludus.protocol.batches import Bytes
from ludus.sdk.crashes import place_of
from ludus.sdk.errors import GameMistake
from ludus.sdk.values import described, entry, flag, info_of, number

STEP: Final = ("observations", "rewards", "terminations", "truncations", "infos")
"""What a parallel game returns from `step`: a dictionary of players each."""
Facts: TypeAlias = Mapping[PlayerId, Any]
"""One of these dictionaries."""
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Ask:
    """A player has to act."""

    player: PlayerId
    observation: Parts
    reward: float
    mask: Bytes | None


@dataclass(frozen=True, slots=True)
class End:
    """A player's episode has ended."""

    player: PlayerId
    observation: Parts
    """The final one."""
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

    def __init__(self, env: Any, views: Mapping[PlayerId, View]) -> None:
        self._env = env
        self._views = views
        self._observed: dict[PlayerId, Parts] = {}
        """Last observation of each player, for games that have none at the end."""

    @abstractmethod
    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Abandon the game and begin it again. Raises GameMistake."""

    @abstractmethod
    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Carry out the actions of all players that were asked, and continue. Raises GameMistake."""

    @property
    def name(self) -> str:
        """The class and the file of the game, for errors."""
        return place_of(self._env.unwrapped)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _read(self, method: str, player: PlayerId, read: Callable[[View], Made]) -> Made:
        """Read what `method` told of a player."""
        self._check_players(method, [player])
        try:
            return read(self._views[player])
        except GameMistake as mistake:
            raise mistake.of(f"{place_of(self._env.unwrapped, method)}, player {player}") from None

    def _final(self, player: PlayerId, value: object, view: View) -> Parts:
        """Return a player's final observation: the one before it where the game has none. Raises GameMistake."""
        observation = self._observed.get(player) if value is None else view.read(value)
        if observation is None:
            raise GameMistake("its episode ends before it was observed; give an observation")
        return observation

    def _check_players(self, method: str, players: Iterable[PlayerId]) -> None:
        for player in players:
            if player not in self._views:
                place, possible = place_of(self._env.unwrapped, method), ", ".join(map(str, self._views))
                raise GameMistake(f"{place} names the player {player!r}; `possible_agents` has only {possible}")


class AECGame(Game):
    """A game in which one player acts at a time."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Begin, and continue to the first player."""
        self._observed.clear()
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
            event = self._read("observe", self._env.agent_selection, self._last)
            if isinstance(event, Ask):
                self._observed[event.player] = event.observation
                return Moment([event], ends)
            ends.append(event)
            self._env.step(None)
        return Moment(ends=ends)

    def _last(self, view: View) -> Ask | End:
        """Return what the game tells of the player whose turn it is."""
        player = self._env.agent_selection
        for name in ("_cumulative_rewards", "terminations", "truncations", "infos"):
            if player not in getattr(self._env, name):
                raise GameMistake(f"self.{name} has no entry for it, though it is in self.agents; give one")
        observation, reward, terminated, truncated, info = self._env.last()
        earned = number(reward, "the reward")
        has_ended, was_cut = flag(terminated, "the termination"), flag(truncated, "the truncation")
        if has_ended or was_cut:
            return End(player, self._final(player, observation, view), earned, truncated=not has_ended)
        return Ask(player, view.read(observation), earned, view.mask(observation, info_of(info)))


class ParallelGame(Game):
    """A game in which all players act at once. Some may leave it before the others, or enter it late."""

    def __init__(self, env: ParallelEnv[Any, Any, Any], views: Mapping[PlayerId, View]) -> None:
        super().__init__(env, views)
        self._entered: set[PlayerId] = set()
        """All players of the game, including those that have left it."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Moment:
        """Begin."""
        answer = self._env.reset(seed=seed, options=options)
        observations, infos = self._dictionaries("reset", answer, ("observations", "infos"))
        self._observed.clear()
        asks = [self._ask("reset", player, observations, infos, None) for player in self._agents()]
        self._entered = set(self._observed)
        return Moment(asks)

    def play(self, actions: Mapping[PlayerId, Any]) -> Moment:
        """Carry out the actions of all players."""
        answer = self._dictionaries("step", self._env.step(dict(actions)), STEP)
        observations, rewards, terminations, truncations, infos = answer
        terminated = {player for player in terminations if self._flag(player, terminations, "termination")}
        truncated = {player for player in truncations if self._flag(player, truncations, "truncation")}
        # A player that entered in this step may also leave in it.
        players = [*self._observed, *(player for player in terminations if player not in self._entered)]
        agents = self._agents()
        staying = [player for player in agents if player not in terminated | truncated]
        ends = [
            self._read("step", player, partial(self._end, player, observations, rewards, player in terminated))
            for player in players
            if player not in staying
        ]
        self._entered.update(players)
        self._observed.clear()
        return Moment([self._ask("step", player, observations, infos, rewards) for player in staying], ends)

    def _agents(self) -> Sequence[PlayerId]:
        agents = self._env.agents
        self._check_players("", agents)
        return agents  # type: ignore[no-any-return]  # the environment is of any kind

    def _ask(self, method: str, player: PlayerId, observations: Facts, infos: Facts, rewards: Facts | None) -> Ask:
        def read(view: View) -> Ask:
            value = entry(observations, player, "the dictionary of observations")
            reward = 0.0 if rewards is None else entry(rewards, player, "the dictionary of rewards")
            mask = view.mask(value, info_of(infos.get(player, {})))
            return Ask(player, view.read(value), number(reward, "the reward"), mask)

        ask = self._read(method, player, read)
        self._observed[player] = ask.observation
        return ask

    def _end(self, player: PlayerId, observations: Facts, rewards: Facts, is_terminated: bool, view: View) -> End:
        """A player that leaves need not be in any dictionary: then its last observation is the one before."""
        value = observations.get(player)
        reward = number(rewards.get(player, 0.0), "the reward")
        return End(player, self._final(player, value, view), reward, truncated=not is_terminated)

    def _flag(self, player: PlayerId, flags: Facts, what: str) -> bool:
        return self._read("step", player, lambda _: flag(flags[player], f"the {what}"))

    def _dictionaries(self, method: str, answer: object, names: Sequence[str]) -> Sequence[Facts]:
        """Return what the game returned, in dictionaries of players."""
        place = place_of(self._env.unwrapped, method)
        if not isinstance(answer, tuple) or len(answer) != len(names):
            came = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else described(answer)
            raise GameMistake(f"{place}: it returns {came}; in PettingZoo it returns {', '.join(names)}")
        for name, part in zip(names, answer, strict=True):
            if not isinstance(part, Mapping):
                raise GameMistake(f"{place}: its {name} are {described(part)}; give a dictionary of the players")
            self._check_players(method, part)
        return answer
