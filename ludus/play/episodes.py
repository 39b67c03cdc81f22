"""Single episodes, played to their end by players of one's own choice, and what came of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ludus.play.intervals import mean_interval
from ludus.play.players import Player, answer
from ludus.seeds import environment_seed
from ludus.simulation import Bystander, GameSimulation, Start
from ludus.spec import BehaviorSpec
from ludus.turn import Actions, Turn
from ludus.wire.batches import BehaviorBatch, Outcome
from ludus.wire.specs import BehaviorLayout

SEED_PARAMETER: Final = "seed"
"""The environment parameter that has to seed the episodes of a simulation that is played here."""


@dataclass(frozen=True)
class Part:
    """What an episode was for the agents of one announced behavior."""

    cumulative_reward: float
    """Sum of an agent's rewards; the mean of them where there are several agents."""
    length: float
    """Decisions of an agent, likewise."""
    outcome: Outcome
    """The first one that one of the agents was told."""


@dataclass(frozen=True)
class Episode:
    """An episode as a player saw it whose strength is asked for."""

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
    """Mean cumulative reward."""
    low: float
    """The 95 % bootstrap interval of the mean reaches from here ..."""
    high: float
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


def play_episode(simulation: GameSimulation, players: Mapping[str, Player], seed: int) -> dict[str, Part]:
    """Play one episode of a simulation with a single game; return what it was, by announced name.

    Each announced behavior needs its player. The game is seeded through `SEED_PARAMETER`, and so are the players.
    """
    layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
    for number, player in enumerate(players.values()):
        player.begin(environment_seed(seed, number))
    turn = Turn(layouts, {})
    start = Start(seed=seed, parameters={SEED_PARAMETER: seed}, number=0, run_id="", first=True)
    simulation.reset(turn, start)
    tally = _Tally()
    while True:
        batches = turn.batches()
        tally.note(batches, over=simulation.finished > 0)
        if simulation.finished:
            return tally.parts(simulation.bystanders)
        turn = Turn(layouts, {})
        simulation.step(turn, Actions(answer(players, batches)))


def play_episodes(
    simulation: GameSimulation,
    candidate: Callable[[BehaviorSpec], Player],
    others: Callable[[BehaviorSpec], Player],
    seeds: Iterable[int],
    teams: Sequence[int | None],
) -> Iterator[Episode]:
    """Play the episodes of `seeds`, and yield each from the candidate's side.

    The candidate plays the given teams in turn, all others are played by `others`. Each seed is played once with every
    team, so that no side has the better luck.
    """
    sides = {
        team: {spec.name: (candidate if team_of(spec) == team else others)(spec) for spec in simulation.behaviors}
        for team in teams
    }
    own = {team: [spec.name for spec in simulation.behaviors if team_of(spec) == team] for team in teams}
    for seed in seeds:
        for team in teams:
            parts = play_episode(simulation, sides[team], seed)
            mine = [parts[name] for name in own[team] if name in parts]
            yield Episode(
                seed,
                team,
                fmean(part.cumulative_reward for part in mine),
                fmean(part.length for part in mine),
                next((part.outcome for part in mine if part.outcome), Outcome.UNSPECIFIED),
            )


def summarize(episodes: Sequence[Episode]) -> Summary:
    """Count and average. There must be an episode. The interval takes episodes as independent of each other."""
    rewards = [episode.cumulative_reward for episode in episodes]
    low, high = mean_interval(rewards)
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


class _Tally:
    """Adds up what the agents of one episode are told."""

    def __init__(self) -> None:
        self._rewards: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._lengths: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._outcomes: dict[str, Outcome] = {}

    def note(self, batches: Iterable[BehaviorBatch], *, over: bool) -> None:
        """Take over a turn. When the game is over, decisions are already those of the next one."""
        for name, decisions, terminals in batches:
            rewards, lengths = self._rewards[name], self._lengths[name]
            if terminals is not None:
                for agent, reward in zip(terminals.agent_ids.tolist(), terminals.rewards.tolist(), strict=True):
                    rewards[agent] += reward
                told = [] if terminals.outcomes is None else terminals.outcomes.tolist()
                for value in filter(None, told):
                    self._outcomes.setdefault(name, Outcome(value))
            if decisions is not None and not over:
                for agent, reward in zip(decisions.agent_ids.tolist(), decisions.rewards.tolist(), strict=True):
                    rewards[agent] += reward if lengths[agent] else 0.0
                    lengths[agent] += 1

    def parts(self, bystanders: Iterable[Bystander]) -> dict[str, Part]:
        """Return the whole episode, without behaviors that had nobody in it."""
        rewards = {name: list(own.values()) for name, own in self._rewards.items() if own}
        lengths = {name: [self._lengths[name][agent] for agent in self._rewards[name]] for name in rewards}
        for bystander in bystanders:
            rewards.setdefault(bystander.behavior, []).append(bystander.reward)
            lengths.setdefault(bystander.behavior, []).append(0)
            if bystander.outcome:
                self._outcomes.setdefault(bystander.behavior, bystander.outcome)
        return {
            name: Part(fmean(own), fmean(lengths[name]), self._outcomes.get(name, Outcome.UNSPECIFIED))
            for name, own in rewards.items()
        }
