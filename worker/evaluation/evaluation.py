"""Evaluations of frozen policies, in batches of games; here those of one policy alone (`evaluate`).

For a *batch* a simulator is reset, with the batch's seed where it takes one. The first episode of each agent (or group)
that asks for an action in the first message after it is a game of the batch. Later episodes, while others of the batch
go on, do not count. So the games that count are fixed before their results are known, and short games have the same
weight as long ones.

An evaluation compares a policy's mean return with a threshold. A fixed number of episodes is played, with the same
seeds in every evaluation of the same run seed. The policy passes where all of the interval of the mean return
(bootstrap, `ludus.statistics`) lies at the threshold or above it, fails where all of it lies below, and else it is
undecided: more episodes make the interval narrower.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Literal

import numpy as np

from ludus.collector.messages import EndedGame
from ludus.config.assessment import EvaluateSettings
from ludus.statistics import mean_interval
from server.ladders.refs import Outcome

Verdict = Literal["pass", "fail", "undecided"]
Counted = tuple[int, int, Outcome]
"""A game against another policy that counts: its number, from 1, over all attempts; the place of the candidate's team;
the candidate's outcome."""
MAX_SEED = 2**24
"""Seeds travel as float32, which has gaps beyond."""


@dataclass(frozen=True, slots=True)
class EvaluationBatch:
    """The games that a simulator plays next."""

    number: int
    """Counts from 0: batches are counted in this order, whichever ends first."""
    team: int | None
    """Place, from 0, of the candidate's team among the teams of the game; None: it plays alone, or CHAMPION_ALONE."""
    seed: int | None
    """The source of the episodes' seeds; None where simulators take none."""


def seed_of(run_seed: int, number: int) -> int:
    """Return the seed of a batch or a pair, fixed by the run's seed."""
    return int(np.random.SeedSequence([run_seed, number]).generate_state(1)[0]) % MAX_SEED


@dataclass
class _Episodes:
    """Counts so far: another attempt continues with them."""

    next_episode_batch: int = 0
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class EpisodeEvaluator:
    """Counts the episodes of an evaluation, and decides when there are enough."""

    teams = 1

    def __init__(self, settings: EvaluateSettings, seed: int, saved: Mapping[str, object] | None = None) -> None:
        """`seed` is the run's; `saved` is the `state` of an earlier attempt."""
        self._settings = settings
        self._seed = seed
        self._counted = _Episodes(**(saved or {}))  # type: ignore[arg-type]  # as `state` has written it

    @property
    def next_batch(self) -> int:
        """Number of the batch that is to be counted next."""
        return self._counted.next_episode_batch

    @property
    def games(self) -> int:
        """Episodes that count."""
        return len(self._counted.returns)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict once all episodes are played; without a threshold every policy passes."""
        if self.games < self._settings.episodes:
            return None
        threshold = self._settings.threshold
        if threshold is None:
            return "pass"
        low, high = self._interval() or (-math.inf, math.inf)
        return "pass" if low >= threshold else "fail" if high < threshold else "undecided"

    def batch(self, number: int) -> EvaluationBatch:
        """Return the batch of this number."""
        seed = None if self._settings.seed_parameter is None else seed_of(self._seed, number)
        return EvaluationBatch(number, None, seed)

    def count(self, batch: EvaluationBatch, games: Sequence[EndedGame]) -> list[Counted]:
        """Count the episodes of `next_batch`, as far as they are still needed; none is against another policy."""
        counted = self._counted
        assert batch.number == counted.next_episode_batch, "batches are counted in order"
        counted.next_episode_batch += 1
        needed = games[: self._settings.episodes - self.games]
        counted.returns += [game.episode_return for game in needed]
        counted.lengths += [game.length for game in needed]
        return []

    def result(self) -> dict[str, object]:
        """Return the present result, for people and programs: JSON values."""
        settings, returns, lengths = self._settings, self._counted.returns, self._counted.lengths
        low, high = (self._interval() if returns else None) or (None, None)
        return {
            "kind": "evaluate",
            "verdict": self.verdict,
            **settings.model_dump(include={"behavior", "checkpoint", "confidence", "threshold"}),
            "episodes": len(returns),
            "wanted": settings.episodes,
            "seeded": settings.seed_parameter is not None,
            "mean": fmean(returns) if returns else None,
            "low": low,
            "high": high,
            "deviation": pstdev(returns) if returns else None,
            "least": min(returns, default=None),
            "most": max(returns, default=None),
            "mean_length": fmean(lengths) if lengths else None,
        }

    def state(self) -> dict[str, object]:
        """Return the state with which another attempt continues: JSON values."""
        return asdict(self._counted)

    def sentence(self) -> str:
        """Return the result as a sentence."""
        returns, threshold = self._counted.returns, self._settings.threshold
        if not returns:
            return "no episode was played to its end"
        result = f"a return of {returns[0]:.4g} in a single episode, which has no interval"
        if (interval := self._interval()) is not None:
            share = f"{self._settings.confidence:.0%} interval {interval[0]:.4g} to {interval[1]:.4g}"
            result = f"a mean return of {fmean(returns):.4g} over {len(returns)} episodes ({share})"
        if threshold is None:
            return result
        match self.verdict:
            case "pass":
                return f"the policy passes: {result} is at least {threshold:g}"
            case "fail":
                return f"the policy fails: {result} is below {threshold:g}"
            case "undecided":
                return f"undecided: {result} does not tell whether the mean is below {threshold:g}; play more episodes"
            case None:
                return f"no verdict yet: {result}"

    def _interval(self) -> tuple[float, float] | None:
        return mean_interval(self._counted.returns, confidence=self._settings.confidence)
