"""Plays single episodes to their end with chosen players, and returns their results."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, TypeVar

import numpy as np

from ludus.demonstrations.recorded import EpisodeLog
from ludus.play.players import Player, answer
from ludus.protocol.batches import BehaviorBatch, DecisionBatch, Outcome, TerminalBatch, rows_of
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk.seeds import environment_seed
from ludus.sdk.simulation import GameSimulation, NonActingPlayer, ResetInfo, Simulation
from ludus.sdk.steps import Actions, StepBuilder
from ludus.statistics import mean_interval

SEED_PARAMETER: Final = "seed"
"""The environment parameter that has to seed the episodes of a simulation that is played here."""


@dataclass(frozen=True)
class Part:
    """Results of an episode for the agents of one announced behavior."""

    cumulative_reward: float
    """Sum of an agent's rewards; the mean of them where there are several agents."""
    length: float
    """Decisions of an agent, likewise."""
    outcome: Outcome
    """The first outcome of one of the agents."""


@dataclass(frozen=True)
class Episode:
    """An episode from the side of the evaluated player."""

    seed: int
    team: int | None
    """Team that it played; None in games without teams."""
    cumulative_reward: float
    length: float
    outcome: Outcome


@dataclass(frozen=True)
class Summary:
    """Episodes, in a few numbers."""

    episodes: int
    mean: float
    low: float | None
    """The 95 % bootstrap interval of the mean reaches from here (None: a single episode has no interval) ..."""
    high: float | None
    """... to here."""
    lowest: float
    highest: float
    mean_length: float
    wins: int
    draws: int
    losses: int
    """Episodes that ended so. All three are 0 in games without winners."""

    @property
    def decided(self) -> int:
        """Episodes that had an outcome."""
        return self.wins + self.draws + self.losses


def team_of(spec: BehaviorSpec) -> int | None:
    """Return the team in an announced name; None if there is none."""
    _, _, team = spec.name.partition("?team=")
    return int(team) if team.isdecimal() else None


_Batch = TypeVar("_Batch", DecisionBatch, TerminalBatch)


class EndlessGame(ValueError):
    """A simulation of which no single episodes can be played. The message says why."""


def play_episode(
    simulation: Simulation, players: Mapping[str, Player], seed: int, log: EpisodeLog | None = None
) -> dict[str, Part]:
    """Play one episode of a simulation with a single game; return the results by announced name.

    Each announced behavior needs its player. The game is seeded by its first start and through `SEED_PARAMETER`, and
    so are the players. `log` hears of everything. Where a simulation does not count its games (`GameSimulation`), its
    game is the same as in an evaluation: the first episodes of the agents that ask first. Raises EndlessGame.
    """
    layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
    for number, player in enumerate(players.values()):
        player.begin(environment_seed(seed, number))
    turn = StepBuilder(layouts, {})
    start = ResetInfo(seed=seed, parameters={SEED_PARAMETER: seed}, number=0, run_id="", first=True)
    simulation.reset(turn, start)
    counted = simulation if isinstance(simulation, GameSimulation) else None
    firsts = _FirstEpisodes()
    tally = _Tally()
    while True:
        if turn.announced:
            raise EndlessGame(
                f"the game introduces {turn.announced[0].name} while it plays: name all that it has in "
                "`Simulation.behaviors`, so that each has a player from the beginning"
            )
        batches = turn.batches()
        events = batches if counted is not None else firsts.select(batches)
        is_over = counted.finished > 0 if counted is not None else firsts.over
        tally.note(events, over=is_over)
        if log is not None:
            log.look(events, {spec.name: spec for spec in simulation.behaviors})
        if is_over:
            if log is not None:
                log.discard()
            return tally.parts(counted.non_acting_players if counted is not None else ())
        actions = Actions(answer(players, batches))
        if log is not None:
            log.act(actions)
        turn = StepBuilder(layouts, {})
        simulation.step(turn, actions)


def play_episodes(
    simulation: Simulation,
    candidate: Callable[[BehaviorSpec], Player],
    others: Callable[[BehaviorSpec], Player],
    seeds: Iterable[int],
    teams: Sequence[int | None],
    log: EpisodeLog | None = None,
) -> Iterator[Episode]:
    """Play the episodes of `seeds`, and yield each from the candidate's side.

    The candidate plays the given teams in turn, all others are played by `others`. Each seed is played once with every
    team, so that no side has the better luck. `log` records the candidate's side. Raises EndlessGame.
    """
    sides = {
        team: {spec.name: (candidate if team_of(spec) == team else others)(spec) for spec in simulation.behaviors}
        for team in teams
    }
    names = {team: [spec.name for spec in simulation.behaviors if team_of(spec) == team] for team in teams}
    for seed in seeds:
        for team in teams:
            if log is not None:
                log.watch(names[team])
            parts = play_episode(simulation, sides[team], seed, log)
            played = [parts[name] for name in names[team] if name in parts] or [Part(0.0, 0.0, Outcome.UNSPECIFIED)]
            yield Episode(
                seed,
                team,
                fmean(part.cumulative_reward for part in played),
                fmean(part.length for part in played),
                next((part.outcome for part in played if part.outcome), Outcome.UNSPECIFIED),
            )


def summarize(episodes: Sequence[Episode]) -> Summary:
    """Count and average. There must be an episode. The interval takes episodes as independent of each other."""
    rewards = [episode.cumulative_reward for episode in episodes]
    low, high = mean_interval(rewards) or (None, None)
    outcomes = [episode.outcome for episode in episodes]
    return Summary(
        len(episodes),
        fmean(rewards),
        low,
        high,
        min(rewards),
        max(rewards),
        fmean(episode.length for episode in episodes),
        *(outcomes.count(outcome) for outcome in (Outcome.WIN, Outcome.DRAW, Outcome.LOSS)),
    )


class _FirstEpisodes:
    """Follows the first episode of each agent that asks first, of every behavior, until all of them have ended."""

    def __init__(self) -> None:
        self._playing: dict[str, set[int]] = {}
        """Announced name -> the agents whose first episode runs."""

    @property
    def over(self) -> bool:
        """Whether agents have played, and all of them have ended."""
        return bool(self._playing) and not any(self._playing.values())

    def select(self, batches: Iterable[BehaviorBatch]) -> list[BehaviorBatch]:
        """Return the part of a step that belongs to these episodes."""
        selected = []
        for name, asking, ending in batches:
            playing = self._playing.get(name, set())
            decisions: DecisionBatch | None = None
            terminals: TerminalBatch | None = None
            if ending is not None:
                terminals = _rows_of(ending, playing)
                playing -= set(ending.agent_ids.tolist())
            if asking is not None:
                decisions = _rows_of(asking, self._playing.setdefault(name, set(asking.agent_ids.tolist())))
            selected.append(BehaviorBatch(name, decisions, terminals))
        return selected


def _rows_of(batch: _Batch, agents: Collection[int]) -> _Batch | None:
    """Return the rows of these agents; None without any."""
    chosen = np.array([agent in agents for agent in batch.agent_ids.tolist()], np.bool_)
    return rows_of(batch, chosen) if chosen.any() else None


class _Tally:
    """Adds up the rewards and lengths of one episode."""

    def __init__(self) -> None:
        self._rewards: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._lengths: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._outcomes: dict[str, Outcome] = {}

    def note(self, batches: Iterable[BehaviorBatch], *, over: bool) -> None:
        """Record a step. When the game is over, decisions are already those of the next one."""
        for name, decisions, terminals in batches:
            rewards, lengths = self._rewards[name], self._lengths[name]
            if terminals is not None:
                for agent, reward in zip(terminals.agent_ids.tolist(), _rewards(terminals), strict=True):
                    rewards[agent] += reward
                outcomes = [] if terminals.outcomes is None else terminals.outcomes.tolist()
                for value in filter(None, outcomes):
                    self._outcomes.setdefault(name, Outcome(value))
            if decisions is not None and not over:
                for agent, reward in zip(decisions.agent_ids.tolist(), _rewards(decisions), strict=True):
                    rewards[agent] += reward if lengths[agent] else 0.0
                    lengths[agent] += 1

    def parts(self, non_acting_players: Iterable[NonActingPlayer]) -> dict[str, Part]:
        """Return the whole episode, without behaviors that had no agents."""
        rewards = {name: list(returns.values()) for name, returns in self._rewards.items() if returns}
        lengths = {name: [self._lengths[name][agent] for agent in self._rewards[name]] for name in rewards}
        for player in non_acting_players:
            rewards.setdefault(player.behavior, []).append(player.reward)
            lengths.setdefault(player.behavior, []).append(0)
            if player.outcome:
                self._outcomes.setdefault(player.behavior, player.outcome)
        return {
            name: Part(fmean(returns), fmean(lengths[name]), self._outcomes.get(name, Outcome.UNSPECIFIED))
            for name, returns in rewards.items()
        }


def _rewards(batch: DecisionBatch | TerminalBatch) -> list[float]:
    """Return the reward of each agent, with that of its group."""
    total = batch.rewards if batch.group_rewards is None else batch.rewards + batch.group_rewards
    return total.tolist()  # type: ignore[no-any-return]  # numpy's stubs say Any
