"""A match: a candidate against a champion, until it is known whether the candidate is stronger (`SPRT`).

Batches come in twos: in the first the candidate plays one team, in the second the other, with the same seed where the
simulators take one. Then the k-th games of both are a pair and count together; else each game counts by itself, and
sides are balanced all the same.

Where returns are compared (games of one player), the candidate plays the first batch alone, the champion the second;
the k-th episodes of both are one game, which the policy with the higher return wins.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ludus.collector.commands import CHAMPION_ALONE
from ludus.collector.messages import EndedGame
from ludus.config.assessment import MatchSettings
from ludus.protocol.batches import Outcome
from worker.evaluation.elo import estimate
from worker.evaluation.episodes import Counted, EvaluationBatch, Evaluator, Verdict, seed_of
from worker.evaluation.sprt import SPRT

HALF_POINTS = {Outcome.LOSS: 0, Outcome.DRAW: 1, Outcome.WIN: 2}
OUTCOMES: tuple[Literal["loss", "draw", "win"], ...] = ("loss", "draw", "win")
"""By their half points."""
REPORTED = {"behavior", "candidate", "champion", "elo0", "elo1", "alpha", "beta", "max_games", "compare"}
"""Settings that a result repeats."""


class MatchEvaluator(Evaluator):
    """Counts the games of a match."""

    def __init__(self, settings: MatchSettings, seed: int, saved: Mapping[str, Any] | None = None) -> None:
        """`seed` is the run's; `saved` is the `state` of an earlier attempt."""
        self._settings = settings
        self._test = SPRT(settings.elo0, settings.elo1, settings.alpha, settings.beta)
        self._alone = settings.compare == "return"
        """Whether the policies play in turn, each alone."""
        self._seeded = settings.seed_parameter is not None
        self.paired = self._seeded and not self._alone
        """Whether games count in pairs."""
        self.teams = 1 if self._alone else 2
        nothing: dict[str, Any] = {
            "next_episode_batch": 0,
            "games": [0, 0, 0],
            "pairs": [0] * 5,
            "waiting": [],
            "returns": [0.0] * 3,
        }
        saved = nothing | dict(saved or {})
        super().__init__(seed, saved["next_episode_batch"])
        self._games: list[int] = list(saved["games"])
        """Losses, draws, wins."""
        self._pairs: list[int] = list(saved["pairs"])
        """By the half points that the candidate won in both games."""
        self._waiting: list[float] = list(saved["waiting"])
        """Half points, or returns, of the games whose other halves come with the next batch."""
        self._returns: list[float] = list(saved["returns"])
        """Sums of the candidate's returns, of the champion's, and of the squares of their differences."""

    @property
    def games(self) -> int:
        """Games that count."""
        return sum(self._games)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict once the games suffice for one; `undecided` if `max_games` do not."""
        decided = self._test.decide(self._counts)
        if decided is not None:
            return decided
        return "undecided" if self.games >= self._settings.max_games else None

    def batch(self, number: int) -> EvaluationBatch:
        """Return the batch of this number: sides are swapped from one to the next."""
        seed = seed_of(self._seed, number // 2) if self._seeded else None
        team = (None, CHAMPION_ALONE)[number % 2] if self._alone else number % 2
        return EvaluationBatch(number, team, seed)

    def count(self, batch: EvaluationBatch, games: Sequence[EndedGame]) -> list[Counted]:
        """Count the games of `next_batch`, as far as the verdict is not known before the last of them."""
        assert batch.number == self.next_batch, "batches are counted in order"
        self.next_batch += 1
        if self._alone:
            self._compare(batch, [game.episode_return for game in games])
            return []  # no game was against the other policy
        points = [HALF_POINTS[game.outcome] for game in games]
        counted: list[Counted] = []
        if not self.paired:
            for each in points:
                if self.verdict is None:
                    counted += [self._count(each, batch.number % 2)]
        elif batch.number % 2 == 0:
            self._waiting = [*points]
        else:
            for first, second in zip(map(int, self._waiting), points, strict=False):
                if self.verdict is None:
                    counted += [self._count(first, 0), self._count(second, 1)]
                    self._pairs[first + second] += 1
            self._waiting = []
        return counted

    def _compare(self, batch: EvaluationBatch, returns: Sequence[float]) -> None:
        """Count the returns of both policies, once the champion's are there, too."""
        if batch.team is None:
            self._waiting = [*returns]
            return
        for candidate, champion in zip(self._waiting, returns, strict=False):
            if self.verdict is None:
                self._games[1 + (candidate > champion) - (candidate < champion)] += 1
                sums = (candidate, champion, (candidate - champion) ** 2)
                self._returns = [total + each for total, each in zip(self._returns, sums, strict=True)]
        self._waiting = []

    def _means(self) -> dict[str, float | None]:
        """Return the means of both policies, and the 95 % interval of their difference (normal approximation)."""
        names = ("mean", "champion_mean", "difference_low", "difference_high")
        if not self._alone or not self.games:
            return dict.fromkeys(names)
        mean, champion, square = (total / self.games for total in self._returns)
        difference = mean - champion
        wide = 1.96 * math.sqrt(max(square - difference**2, 0.0) / max(self.games - 1, 1))
        known = self.games > 1
        ends = (difference - wide, difference + wide) if known else (None, None)
        return dict(zip(names, (mean, champion, *ends), strict=True))

    def _count(self, points: int, place: int) -> Counted:
        self._games[points] += 1
        return self.games, place, OUTCOMES[points]

    def result(self) -> dict[str, Any]:
        """Return the present result."""
        losses, draws, wins = self._games
        lead = estimate(self._counts)
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
            "pairs": self._pairs if self.paired else None,
            "score": (wins + draws / 2) / self.games if self.games else None,
            "elo": lead.elo,
            "elo_low": lead.low,
            "elo_high": lead.high,
            "llr": self._test.llr(self._counts),
            "llr_lower": self._test.lower,
            "llr_upper": self._test.upper,
        }

    def state(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "next_episode_batch": self.next_batch,
            "games": list(self._games),
            "pairs": list(self._pairs),
            "waiting": list(self._waiting),
            "returns": list(self._returns),
        }

    def sentence(self) -> str:
        """Return the result as a sentence."""
        losses, draws, wins = self._games
        settings = self._settings
        said = {
            "pass": f"the candidate passes: a lead of {settings.elo1:g} Elo explains its games better than one of "
            f"{settings.elo0:g}",
            "fail": f"the candidate fails: a lead of {settings.elo0:g} Elo explains its games better than one of "
            f"{settings.elo1:g}",
            "undecided": f"undecided after {self.games} games, the most that are played",
            None: "no verdict yet",
        }[self.verdict]
        mean, champion, *_ = self._means().values()
        returns = "" if mean is None or champion is None else f"; mean returns {mean:.4g} and {champion:.4g}"
        return f"{said} ({wins} won, {draws} drawn, {losses} lost{returns})"

    @property
    def _counts(self) -> list[int]:
        return self._pairs if self.paired else self._games
