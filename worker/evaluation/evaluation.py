"""An evaluation: compares a policy's mean return with a threshold.

A fixed number of episodes is played, with the same seeds in every evaluation of the same run seed. The policy passes
where all of the interval of the mean return (bootstrap, `ludus.play.episodes`) lies at the threshold or above it,
fails where all of it lies below, and else it is undecided: more episodes make the interval narrower.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from ludus.collector.messages import EndedGame
from ludus.config.assessment import EvaluateSettings
from ludus.play.episodes import mean_interval
from worker.evaluation.episodes import Counted, EvaluationBatch, Evaluator, Verdict, seed_of


class EpisodeEvaluator(Evaluator):
    """Counts the episodes of an evaluation."""

    teams = 1

    def __init__(self, settings: EvaluateSettings, seed: int, saved: Mapping[str, Any] | None = None) -> None:
        """`seed` is the run's; `saved` is the `state` of an earlier attempt."""
        self._settings = settings
        saved = saved or {"next_episode_batch": 0, "returns": [], "lengths": []}
        super().__init__(seed, saved["next_episode_batch"])
        self._returns: list[float] = list(saved["returns"])
        self._lengths: list[int] = list(saved["lengths"])

    @property
    def verdict(self) -> Verdict | None:
        """The verdict once all episodes are played; without a threshold every policy passes."""
        if len(self._returns) < self._settings.episodes:
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
        """Count the episodes of `next_batch`, as far as they are still wanted."""
        assert batch.number == self.next_batch, "batches are counted in order"
        self.next_batch += 1
        wanted = games[: self._settings.episodes - len(self._returns)]
        self._returns += [game.episode_return for game in wanted]
        self._lengths += [game.length for game in wanted]
        return []  # there is no other policy

    def result(self) -> dict[str, Any]:
        """Return the present result."""
        settings, returns = self._settings, self._returns
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
            "mean_length": fmean(self._lengths) if self._lengths else None,
        }

    def state(self) -> dict[str, Any]:
        """Return the episodes."""
        return {"next_episode_batch": self.next_batch, "returns": list(self._returns), "lengths": list(self._lengths)}

    def sentence(self) -> str:
        """Return the result as a sentence."""
        if not self._returns:
            return "no episode was played to its end"
        said = f"a return of {self._returns[0]:.4g} in a single episode, which has no interval"
        if (interval := self._interval()) is not None:
            share = f"{self._settings.confidence:.0%} interval {interval[0]:.4g} to {interval[1]:.4g}"
            said = f"a mean return of {fmean(self._returns):.4g} over {len(self._returns)} episodes ({share})"
        if self._settings.threshold is None:
            return said
        end = {
            "pass": f"the policy passes: {said} is at least {self._settings.threshold:g}",
            "fail": f"the policy fails: {said} is below {self._settings.threshold:g}",
            "undecided": f"undecided: {said} does not tell whether the mean is below {self._settings.threshold:g}; "
            "play more episodes",
            None: f"no verdict yet: {said}",
        }
        return end[self.verdict]

    def _interval(self) -> tuple[float, float] | None:
        return mean_interval(self._returns, confidence=self._settings.confidence)
