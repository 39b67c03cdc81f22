"""PettingZoo games as simulators: several in one process, each of their players an agent.

Games of both kinds (`AECEnv`, `ParallelEnv`) continue as soon as the players whose turn it is have acted. Player p of
game i is agent `i * players + p`. At its end a player gets its own final observation and its rewards since its last
action, also if another player made the last move. Rewards before the first action come with the second message, because
a reward before the first action belongs to no action and would be lost.

`observation["action_mask"]`, or else `info["action_mask"]`, becomes the agent's action mask. When a game is over, whose
rewards of all teams add up to 0, the players of this last moment get its outcome: won with a return above 0, lost
below 0, else drawn. Environment parameters are handed to `reset` as `options`, but for the one that seeds episodes
(`ludus.sdk.seeds`). `ludus.adapters.assignment` assigns teams. Observations are copied at the moment of the answer:
games use their arrays again.
"""

import itertools
import re
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

import pettingzoo
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.env_registry.exceptions import FailedToImport, PettingZooRegistryError

from ludus.adapters.assignment import Assignment, Lineup, PlayerId, UnsupportedGame, View, assign_agents
from ludus.adapters.spaces import Parts
from ludus.protocol.batches import Bytes, Outcome
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.crashes import FACTORIES, GameNotMade, guarded, place_of
from ludus.sdk.environment_parameters import EnvironmentParameters
from ludus.sdk.errors import GameMistake
from ludus.sdk.seeds import EpisodeSeeds
from ludus.sdk.simulation import GameSimulation, NonActingPlayer, ResetInfo
from ludus.sdk.steps import Actions, AgentRows, StepBuilder
from ludus.sdk.values import described, entry, flag, info_of, number

STEP: Final = ("observations", "rewards", "terminations", "truncations", "infos")
"""Result of a parallel game's `step`: five dictionaries, each with one entry per player."""
Facts: TypeAlias = Mapping[PlayerId, Any]
"""A dictionary of players: one of these, or their actions."""
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
    def reset(self, seed: int | None, options: dict[str, float] | None) -> Moment:
        """Abandon the game and begin it again. Raises GameMistake."""

    @abstractmethod
    def play(self, actions: Facts) -> Moment:
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

    def reset(self, seed: int | None, options: dict[str, float] | None) -> Moment:
        """Begin, and continue to the first player."""
        self._observed.clear()
        self._env.reset(seed=seed, options=options)
        return self._play_on()

    def play(self, actions: Facts) -> Moment:
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

    def reset(self, seed: int | None, options: dict[str, float] | None) -> Moment:
        """Begin."""
        answer = self._env.reset(seed=seed, options=options)
        observations, infos = self._dictionaries("reset", answer, ("observations", "infos"))
        self._observed.clear()
        asks = [self._ask("reset", player, observations, infos, None) for player in self._agents()]
        self._entered = set(self._observed)
        return Moment(asks)

    def play(self, actions: Facts) -> Moment:
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


Environment: TypeAlias = "AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]"


def behavior_name(name: str) -> str:
    """Name of the behavior that a game stands for: `classic.connect_four_v3` -> `connect_four`."""
    module, _, factory = name.partition(":")
    last = factory if factory and not factory.endswith("env") else re.split(r"[./]", module)[-1]
    return re.sub(r"[-_]v\d+$", "", last)


def make_environment(name: str, arguments: Mapping[str, object] | None = None) -> Environment:
    """Make a game of PettingZoo, or of another package.

    `name` is a module with `env` or `parallel_env` (of PettingZoo: `classic.tictactoe_v3`; of any package:
    `my_package.arena`), such a module with another factory (`my_package.arena:make`), or an id of PettingZoo's
    registry (`classic/tictactoe-v3`). Raises UnsupportedGame and GameNotMade.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo would rather have its registry used
        env: Any = guarded(name, _make, _factory(name), arguments or {})
    if not isinstance(env, AECEnv | ParallelEnv):
        raise UnsupportedGame(f"{name} makes a {type(env).__name__}, which is no PettingZoo game")
    return env


def _make(factory: Callable[..., Any], arguments: Mapping[str, object]) -> Any:
    try:
        return factory(**arguments)
    except FailedToImport as error:
        raise GameNotMade(str(error)) from error


def make_simulation(
    name: str,
    count: int = 1,
    *,
    behavior: str | None = None,
    separate: bool = False,
    teams: Sequence[int] = (),
    seed: int | None = None,
    seed_parameter: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> "PettingZooSimulation":
    """Make `count` games; `name` and errors as in `make_environment`, the rest as in `Lineup`, `PettingZooSimulation`.

    `arguments` are the game's own.
    """
    envs = [make_environment(name, arguments) for _ in range(count)]
    lineup = Lineup(behavior, separate, tuple(teams))
    return PettingZooSimulation(envs, behavior_name(name), lineup, seed, seed_parameter)


class PettingZooSimulation(GameSimulation):
    """Games of one sort, which play independently of each other."""

    def __init__(
        self,
        envs: Sequence[Environment],
        name: str,
        lineup: Lineup = Lineup(),  # noqa: B008  frozen
        seed: int | None = None,
        seed_parameter: str | None = None,
    ) -> None:
        """Simulate games of one kind.

        `name` is the behavior's name unless `lineup` has another one. `seed` replaces the seed that the run
        gives this simulator; `seed_parameter` is the environment parameter that seeds episodes.
        """
        self.assignments = assign_agents(name, envs[0], lineup)
        """Of each player."""
        self._players: Sequence[PlayerId] = list(self.assignments)
        views = {player: assignment.view for player, assignment in self.assignments.items()}
        games = [AECGame(env, views) if isinstance(env, AECEnv) else ParallelGame(env, views) for env in envs]
        self._tables = [_Table(index, game) for index, game in enumerate(games)]
        self._seeds = EpisodeSeeds(seed, seed_parameter)
        self._parameters = EnvironmentParameters()
        """Those of the run, as they are now."""
        self._parts = {assignment.spec.name: assignment for assignment in self.assignments.values()}
        """Announced name -> one of its assignments."""
        self.behaviors: Sequence[BehaviorSpec] = [assignment.spec for assignment in self._parts.values()]

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin every game again."""
        self._seeds.restart(start)
        self._parameters = builder.parameters
        self.finished = 0
        news = _News()
        for table in self._tables:
            self._begin(table, news)
        self._tell(builder, news)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Continue the games whose players have all been answered."""
        self._parameters = builder.parameters
        answered: dict[_Table, None] = {}
        for batch in actions.batches:
            assert batch.agent_ids is not None
            values = self._parts[batch.behavior].view.decoder.rows(batch.continuous, batch.discrete)
            for agent, action in zip(batch.agent_ids.tolist(), values, strict=True):
                index, player = divmod(agent, len(self._players))
                self._tables[index].answers[self._players[player]] = action
                answered[self._tables[index]] = None
        news = _News()
        for table in answered:
            if len(table.answers) == table.asked:
                answers, table.answers = table.answers, {}
                with self._naming(table):
                    moment = table.game.play(answers)
                self._play_on(table, moment, news)
        self._tell(builder, news)

    def close(self) -> None:
        """Close every game."""
        for table in self._tables:
            table.game.close()

    def _begin(self, table: "_Table", news: "_News") -> None:
        table.clear()
        with self._naming(table):
            moment = table.game.reset(self._seeds.next(table.index), self._seeds.options)
        if not moment.asks:
            raise UnsupportedGame("the game ended before any player could act")
        self._play_on(table, moment, news)

    def _play_on(self, table: "_Table", moment: Moment, news: "_News") -> None:
        """Record the events of a game; begin it again if it is over."""
        table.asked = len(moment.asks)
        for event in itertools.chain[Ask | End](moment.ends, moment.asks):
            table.returns[event.player] += event.reward
            table.owed[event.player] += event.reward
        outcomes = {} if moment.asks else self._outcomes(table)
        for end in moment.ends:
            outcome = outcomes.get(self.assignments[end.player].team, Outcome.UNSPECIFIED)
            if end.player in table.playing:
                self._end(table, end, outcome, news)
            else:
                name = self.assignments[end.player].spec.name
                table.non_acting_players.append(NonActingPlayer(name, table.owed.pop(end.player), outcome))
        for ask in moment.asks:
            self._ask(table, ask, news)
        if not moment.asks:
            self.finished += 1
            self.non_acting_players = tuple(table.non_acting_players)
            self._seeds.change(self._parameters.draw())
            self._begin(table, news)

    def _end(self, table: "_Table", end: End, outcome: Outcome, news: "_News") -> None:
        assignment = self.assignments[end.player]
        table.playing.discard(end.player)
        news.rows(news.terminals, assignment).end(
            self._agent(table, assignment),
            table.owed.pop(end.player),
            end.observation,
            truncated=end.truncated,
            group=self._group(table, assignment),
            outcome=outcome,
        )

    def _ask(self, table: "_Table", ask: Ask, news: "_News") -> None:
        assignment = self.assignments[ask.player]
        begins = ask.player not in table.playing
        table.playing.add(ask.player)
        news.rows(news.decisions, assignment).ask(
            self._agent(table, assignment),
            0.0 if begins else table.owed.pop(ask.player),
            ask.observation,
            ask.mask,
            self._group(table, assignment),
        )

    def _agent(self, table: "_Table", assignment: Assignment) -> int:
        return table.index * len(self._players) + assignment.index

    def _group(self, table: "_Table", assignment: Assignment) -> int:
        return table.index * len(self._players) + assignment.group if assignment.group else 0

    def _outcomes(self, table: "_Table") -> dict[int, Outcome]:
        """Return each team's outcome; none if the rewards do not add up to 0."""
        returns: defaultdict[int, float] = defaultdict(float)
        for player, value in table.returns.items():
            returns[self.assignments[player].team] += value
        # Rewards such as 0.1 do not add up to exactly 0.
        limit = 1e-6 * max(map(abs, returns.values()), default=0.0)
        if len(returns) < 2 or abs(sum(returns.values())) > limit:
            return {}
        return {
            team: Outcome.WIN if value > limit else Outcome.LOSS if value < -limit else Outcome.DRAW
            for team, value in returns.items()
        }

    def _tell(self, builder: StepBuilder, news: "_News") -> None:
        for name, terminals in news.terminals.items():
            with self._naming_rows(terminals):
                builder.end_episodes(terminals.terminals(), name)
        for name, decisions in news.decisions.items():
            with self._naming_rows(decisions):
                builder.request_decisions(decisions.decisions(self._parts[name].spec.actions.mask_size), name)

    @contextmanager
    def _naming(self, table: "_Table") -> Iterator[None]:
        """Add which of the games has made a mistake."""
        try:
            yield
        except GameMistake as mistake:
            if len(self._tables) == 1:
                raise
            raise mistake.of(f"game {table.index} of {len(self._tables)}") from None

    @contextmanager
    def _naming_rows(self, rows: AgentRows) -> Iterator[None]:
        """Add whose value in a column is a mistake."""
        try:
            yield
        except GameMistake as mistake:
            index, player = divmod(rows.agents[mistake.row or 0], len(self._players))
            with self._naming(self._tables[index]):
                raise mistake.of(f"{self._tables[index].game.name}, player {self._players[player]}") from None


class _Table:
    """One game being played."""

    def __init__(self, index: int, game: Game) -> None:
        self.index = index
        self.game = game
        self.asked = 0
        """Number of players that have to act."""
        self.answers: dict[PlayerId, object] = {}
        """Actions of the players that have been answered."""
        self.playing: set[PlayerId] = set()
        """Players that were asked and have not ended."""
        self.owed: defaultdict[PlayerId, float] = defaultdict(float)
        """Rewards that were not reported yet."""
        self.non_acting_players: list[NonActingPlayer] = []
        self.returns: defaultdict[PlayerId, float] = defaultdict(float)
        """Return of each player since the game began."""

    def clear(self) -> None:
        """Clear the state of the last game."""
        self.asked = 0
        for memory in (self.answers, self.playing, self.non_acting_players, self.owed, self.returns):
            memory.clear()


class _News:
    """The events to report in a step, by announced name."""

    def __init__(self) -> None:
        self.decisions: dict[str, AgentRows] = {}
        self.terminals: dict[str, AgentRows] = {}

    def rows(self, part: dict[str, AgentRows], assignment: Assignment) -> AgentRows:
        """Return the rows of a player's behavior in `decisions` or `terminals`."""
        return part.setdefault(assignment.spec.name, AgentRows(assignment.view.encoder.stack))


def _factory(name: str) -> Callable[..., Any]:
    """Return the factory of a game. Raises UnsupportedGame if there is none, ImportError if a library is missing."""
    if "/" in name:  # an id of PettingZoo's registry
        for kind in ("parallel", "aec"):
            try:
                return partial(pettingzoo.make, kind, pettingzoo.spec(kind, name))
            except PettingZooRegistryError as error:
                problem = str(error)
        raise UnsupportedGame(problem)
    module_name, _, attribute = name.partition(":")
    module = _module(module_name)
    if attribute:
        if not hasattr(module, attribute):
            raise UnsupportedGame(f"the module {module.__name__} has no {attribute}")
        return getattr(module, attribute)  # type: ignore[no-any-return]  # checked when it is called
    for factory in FACTORIES:
        if hasattr(module, factory):
            return getattr(module, factory)  # type: ignore[no-any-return]  # likewise
    raise UnsupportedGame(
        f"the module {module.__name__} has neither parallel_env nor env: write pettingzoo:{module_name}:FACTORY"
    )


def _module(name: str) -> Any:
    """Import a module of PettingZoo, or else of any package."""
    for full_name in (f"pettingzoo.{name}", name):
        try:
            return guarded(full_name, import_module, full_name)
        except GameNotMade as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            missing = error.__cause__.name
            if missing is None or not f"{full_name}.".startswith(f"{missing}."):
                family = name.partition(".")[0]
                remedy = f": pip install 'pettingzoo[{family}]'" if full_name != name else ""
                raise UnsupportedGame(f"{name} needs the module {missing}, which is missing{remedy}") from error
    raise UnsupportedGame(f"there is no game {name}: neither pettingzoo.{name} nor {name} can be imported")
