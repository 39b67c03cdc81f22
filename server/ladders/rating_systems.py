"""Rating systems: Elo as in ML-Agents, and a rating with its uncertainty. Pure arithmetic.

The second rating is Weng and Lin's (A Bayesian Approximation Method for Online Ranking, JMLR 12, 2011, algorithm 1,
Bradley-Terry with full pairs), by the library `openskill` with its defaults: strength is believed to be normal with
mean `mu` (at first 25) and deviation `sigma` (at first 25/3), for any number of sides, with draws. A player's `ordinal`
is mu - 3 sigma.

Additions to the two formulas:

- A frozen policy enters with the ratings that the learning one had when it was taken: after its last match before that
  step (ML-Agents writes the present rating into the snapshot's slot).
- With more than two sides, each pairing has its part of one K, so that a match moves a player by at most K and Elo is
  conserved. A run only knows how its first participant did: then only pairings with that one count, and for the second
  rating the others drew.
- Two participants of one player (a policy that plays against itself) say nothing about each other.
- A fixed player's ratings stay what they are. The gains and losses of its opponents have no counterpart.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from openskill.models import BradleyTerryFull

from server.ladders import elo

_MODEL: Final = BradleyTerryFull()
INITIAL_MU: Final = float(_MODEL.mu)
INITIAL_SIGMA: Final = float(_MODEL.sigma)


class Rating(NamedTuple):
    """The strength of a player."""

    elo: float
    mu: float
    sigma: float


class Participant(NamedTuple):
    """One side of a match."""

    player: int
    rank: int
    """1 is best; equal ones drew."""
    step: int | None
    """Steps for which the policy had learned, where it is one of a run."""


class Game(NamedTuple):
    """A match that counts."""

    seq: int
    at: float
    scored: bool
    """Any two participants compare; else only the first one with the others."""
    participants: tuple[Participant, ...]


class Point(NamedTuple):
    """A player's ratings after one of its games."""

    player: int
    game: int
    seq: int
    step: int | None
    at: float
    rating: Rating


class Tally(NamedTuple):
    """Results of the first of two players against the second."""

    wins: int
    draws: int
    losses: int


@dataclass
class RatingState:
    """Where a player stands."""

    player: int
    rating: Rating
    games: int
    fixed: bool = False
    parent: int | None = None
    """The learning policy that a snapshot was taken of."""


Earlier = Callable[[int, int], Rating | None]
"""(player, step) -> the player's ratings after its last stored game before that step; None if there is none."""


class RatingTable:
    """Plays games through: standings change, and points and tallies of what is new are collected."""

    def __init__(self, standings: Iterable[RatingState], earlier: Earlier) -> None:
        self.standings = {standing.player: standing for standing in standings}
        self.points: list[Point] = []
        self.tallies: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._earlier = earlier
        self._histories: dict[int, list[Point]] = defaultdict(list)

    def play(self, game: Game) -> None:
        """Rate one game. One between less than two players changes nothing."""
        present: dict[int, Participant] = {}
        for participant in game.participants:
            present.setdefault(participant.player, participant)
        if len(present) < 2:
            return
        for player, participant in present.items():
            self._enter(self.standings[player], participant.step)
        before = {player: self.standings[player].rating for player in present}
        gains = _elo_gains(game, before)
        teams = [[_MODEL.rating(mu=rating.mu, sigma=rating.sigma)] for rating in before.values()]
        rated = _MODEL.rate(teams, ranks=[float(participant.rank) for participant in present.values()])
        for (player, participant), (belief,) in zip(present.items(), rated, strict=True):
            standing = self.standings[player]
            standing.games += 1
            if not standing.fixed:
                standing.rating = Rating(before[player].elo + gains[player], belief.mu, belief.sigma)
            point = Point(player, standing.games, game.seq, participant.step, game.at, standing.rating)
            self.points.append(point)
            self._histories[player].append(point)
        count(self.tallies, game)

    def _enter(self, standing: RatingState, step: int | None) -> None:
        """Give a snapshot that has not played yet the ratings that its policy had when it was taken, at `step`."""
        if standing.games or standing.parent is None or step is None:
            return
        for point in reversed(self._histories[standing.parent]):
            if point.step is not None and point.step < step:
                standing.rating = point.rating
                return
        standing.rating = self._earlier(standing.parent, step) or standing.rating


def count(tallies: Mapping[tuple[int, int], list[int]], game: Game, sign: int = 1) -> None:
    """Add a game's results to the tallies (wins, draws, losses) of its pairs of players, or take them away (-1)."""
    for a, b in _pairings(game):
        first, second = (a, b) if a.player < b.player else (b, a)
        kind = 1 if a.rank == b.rank else 0 if first.rank < second.rank else 2
        tallies[first.player, second.player][kind] += sign


def tally(games: Iterable[Game]) -> dict[tuple[int, int], Tally]:
    """Return the results of each pair of players; of a pair, the one with the lower number comes first."""
    counted: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for game in games:
        count(counted, game)
    return {pair: Tally(*results) for pair, results in counted.items()}


def ranks(scores: Sequence[float]) -> list[int]:
    """Return the rank of each score, 1 for the highest; equal scores share one, and the next is counted past them."""
    better = Counter(scores)
    return [1 + sum(many for higher, many in better.items() if higher > score) for score in scores]


def _pairings(game: Game) -> Iterator[tuple[Participant, Participant]]:
    """Yield the pairs of participants, with different players, that the game compares."""
    players = itertools.combinations(game.participants, 2)
    pairs = players if game.scored else ((game.participants[0], opponent) for opponent in game.participants[1:])
    return ((a, b) for a, b in pairs if a.player != b.player)


def _elo_gains(game: Game, before: Mapping[int, Rating]) -> dict[int, float]:
    """Return by how much each player's Elo changes; the sum is 0."""
    gains = dict.fromkeys(before, 0.0)
    share = 1.0 / (len(game.participants) - 1)
    for a, b in _pairings(game):
        score = 0.5 if a.rank == b.rank else float(a.rank < b.rank)
        gain = share * elo.change(score, before[a.player].elo, before[b.player].elo)
        gains[a.player] += gain
        gains[b.player] -= gain
    return gains
