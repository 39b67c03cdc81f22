"""A match: a candidate against a champion, until it is known whether the candidate is stronger (`SPRT`).

Batches come in twos: in the first the candidate plays one team, in the second the other, with the same seed where the
simulators take one. Then the k-th games of both are a pair and count together; else each game counts by itself, and
sides are balanced all the same.

Where returns are compared (games of one player), the candidate plays the first batch alone, the champion the second;
the k-th episodes of both are one game, which the policy with the higher return wins.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from ludus.collector.commands import CHAMPION_ALONE
from ludus.collector.messages import EndedGame
from ludus.config.assessment import MatchSettings
from ludus.protocol.batches import Outcome
from worker.evaluation.evaluation import Counted, EvaluationBatch, Verdict, seed_of
from worker.evaluation.sprt import SPRT, estimate

HALF_POINTS = {Outcome.LOSS: 0, Outcome.DRAW: 1, Outcome.WIN: 2}
OUTCOMES: tuple[Literal["loss", "draw", "win"], ...] = ("loss", "draw", "win")
"""By their half points."""
REPORTED = {"behavior", "candidate", "champion", "elo0", "elo1", "alpha", "beta", "max_games", "compare"}
"""Settings that a result repeats."""


@dataclass
class _Games:
    """Counts so far: another attempt continues with them."""

    next_episode_batch: int = 0
    games: list[int] = field(default_factory=lambda: [0] * 3)
    """Losses, draws, wins."""
    pairs: list[int] = field(default_factory=lambda: [0] * 5)
    """By the half points that the candidate won in both games."""
    waiting: list[float] = field(default_factory=list)
    """Half points, or returns, of the games whose other halves come with the next batch."""
    returns: list[float] = field(default_factory=lambda: [0.0] * 3)
    """Sums of the candidate's returns, of the champion's, and of the squares of their differences."""


class MatchEvaluator:
    """Assigns the sides of a match, counts its games, and decides when there are enough."""

    def __init__(self, settings: MatchSettings, seed: int, saved: Mapping[str, object] | None = None) -> None:
        """`seed` is the run's; `saved` is the `state` of an earlier attempt."""
        self._settings = settings
        self._seed = seed
        self._test = SPRT(settings.elo0, settings.elo1, settings.alpha, settings.beta)
        self._alone = settings.compare == "return"
        """Whether the policies play in turn, each alone."""
        self._seeded = settings.seed_parameter is not None
        self.paired = self._seeded and not self._alone
        """Whether games count in pairs."""
        self.teams = 1 if self._alone else 2
        """How many teams a simulator must bring."""
        self._counted = _Games(**(saved or {}))  # type: ignore[arg-type]  # as `state` has written it

    @property
    def next_batch(self) -> int:
        """Number of the batch that is to be counted next."""
        return self._counted.next_episode_batch

    @property
    def games(self) -> int:
        """Games that count."""
        return sum(self._counted.games)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict once the games suffice for one; `undecided` if `max_games` do not."""
        return self._test.decide(self._results) or ("undecided" if self.games >= self._settings.max_games else None)

    def batch(self, number: int) -> EvaluationBatch:
        """Return the batch of this number: sides are swapped from one to the next."""
        seed = seed_of(self._seed, number // 2) if self._seeded else None
        team = (None, CHAMPION_ALONE)[number % 2] if self._alone else number % 2
        return EvaluationBatch(number, team, seed)

    def count(self, batch: EvaluationBatch, games: Sequence[EndedGame]) -> list[Counted]:
        """Count the games of `next_batch`, up to a verdict; return those that were against the other policy."""
        assert batch.number == self.next_batch, "batches are counted in order"
        self._counted.next_episode_batch += 1
        if self._alone:
            self._compare(batch, [game.episode_return for game in games])
            return []
        points = [HALF_POINTS[game.outcome] for game in games]
        counted: list[Counted] = []
        if not self.paired:
            for half_points in points:
                if self.verdict is None:
                    counted += [self._count(half_points, batch.number % 2)]
        elif batch.number % 2 == 0:
            self._counted.waiting = [*points]
        else:
            for first, second in zip(map(int, self._counted.waiting), points, strict=False):
                if self.verdict is None:
                    counted += [self._count(first, 0), self._count(second, 1)]
                    self._counted.pairs[first + second] += 1
            self._counted.waiting = []
        return counted

    def _compare(self, batch: EvaluationBatch, returns: Sequence[float]) -> None:
        """Count the returns of both policies, once the champion's are there, too."""
        counted = self._counted
        if batch.team is None:
            counted.waiting = [*returns]
            return
        for candidate, champion in zip(counted.waiting, returns, strict=False):
            if self.verdict is None:
                counted.games[1 + (candidate > champion) - (candidate < champion)] += 1
                for index, value in enumerate((candidate, champion, (candidate - champion) ** 2)):
                    counted.returns[index] += value
        counted.waiting = []

    def _count(self, points: int, place: int) -> Counted:
        self._counted.games[points] += 1
        return self.games, place, OUTCOMES[points]

    def _means(self) -> dict[str, float | None]:
        """Return the means of both policies, and the 95 % interval of their difference (normal approximation)."""
        names = ("mean", "champion_mean", "difference_low", "difference_high")
        if not self._alone or not self.games:
            return dict.fromkeys(names)
        mean, champion, square = (total / self.games for total in self._counted.returns)
        difference = mean - champion
        wide = 1.96 * math.sqrt(max(square - difference**2, 0.0) / max(self.games - 1, 1))
        ends = (difference - wide, difference + wide) if self.games > 1 else (None, None)
        return dict(zip(names, (mean, champion, *ends), strict=True))

    def result(self) -> dict[str, object]:
        """Return the present result, for people and programs: JSON values."""
        losses, draws, wins = self._counted.games
        lead = estimate(self._results)
        return {
            "kind": "match",
            "verdict": self.verdict,
            **self._settings.model_dump(include=REPORTED),
            "games": self.games,
            "wins": wins,
            "draws": draws,
            "losses": losses,
            "paired": self.paired or (self._alone and self._seeded),
            **self._means(),
            "pairs": self._counted.pairs if self.paired else None,
            "score": (wins + draws / 2) / self.games if self.games else None,
            "elo": lead.elo,
            "elo_low": lead.low,
            "elo_high": lead.high,
            "llr": self._test.llr(self._results),
            "llr_lower": self._test.lower,
            "llr_upper": self._test.upper,
        }

    def state(self) -> dict[str, object]:
        """Return the state with which another attempt continues: JSON values."""
        return asdict(self._counted)

    def sentence(self) -> str:
        """Return the result as a sentence."""
        losses, draws, wins = self._counted.games
        elo0, elo1 = self._settings.elo0, self._settings.elo1
        verdict = {
            "pass": f"the candidate passes: a lead of {elo1:g} Elo explains its games better than one of {elo0:g}",
            "fail": f"the candidate fails: a lead of {elo0:g} Elo explains its games better than one of {elo1:g}",
            "undecided": f"undecided after {self.games} games, the most that are played",
            None: "no verdict yet",
        }[self.verdict]
        mean, champion, *_ = self._means().values()
        returns = "" if mean is None or champion is None else f"; mean returns {mean:.4g} and {champion:.4g}"
        return f"{verdict} ({wins} won, {draws} drawn, {losses} lost{returns})"

    @property
    def _results(self) -> list[int]:
        return self._counted.pairs if self.paired else self._counted.games
