"""Is one policy stronger than another? A sequential probability ratio test, which stops as soon as it knows.

Wald's test (Sequential Tests of Statistical Hypotheses, 1945) weighs two hypotheses on the candidate's lead against
each other, H0: `elo0` and H1: `elo1`. After every result the log-likelihood ratio of both,

    LLR = log P(results | H1) / P(results | H0),

is compared with two bounds: at or above `log((1 - beta) / alpha)` H1 is accepted (pass), at or below
`log(beta / (1 - alpha))` H0 (fail); between them another result is needed. A candidate whose lead is `elo0` or less
passes with a probability of about `alpha` at most, one whose lead is `elo1` or more fails with one of about `beta`.

A lead only says what the mean score is (`worker.evaluation.elo`), not how many games are drawn, nor how alike the two
games of a pair are. So each hypothesis is represented by the most likely distribution of results among those with its
mean (the generalized SPRT; Van den Bergh, "A Practical Introduction to the GSPRT", as Fishtest applies it). Results
are *trinomial*: loss, draw, win, each game by itself; or *pentanomial*: what a pair of games with the same seed and
swapped sides brought together, 0 to 4 half points. Openings that favour a side then cancel out within a pair, and the
test needs fewer games.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worker.evaluation.elo import score_of
from worker.evaluation.likelihood import UNSEEN, most_likely

Decision = Literal["pass", "fail"]


@dataclass(frozen=True)
class SPRT:
    """The test; it has no state of its own: results come in as counts."""

    elo0: float
    """Lead of the candidate under H0, in Elo points."""
    elo1: float
    """Lead under H1; above `elo0`."""
    alpha: float = 0.05
    """Probability that a candidate of lead `elo0` passes."""
    beta: float = 0.05
    """Probability that a candidate of lead `elo1` fails."""

    @property
    def lower(self) -> float:
        """The LLR at which the candidate has failed."""
        return math.log(self.beta / (1.0 - self.alpha))

    @property
    def upper(self) -> float:
        """The LLR at which the candidate has passed."""
        return math.log((1.0 - self.beta) / self.alpha)

    def llr(self, counts: Sequence[int]) -> float:
        """Return the log-likelihood ratio of H1 against H0; 0 without results.

        `counts[k]` results scored `k / (len(counts) - 1)`: three for single games, five for pairs.
        """
        if not sum(counts):
            return 0.0
        seen = [count or UNSEEN for count in counts]
        under0, under1 = most_likely(seen, score_of(self.elo0)), most_likely(seen, score_of(self.elo1))
        return sum(count * math.log(one / zero) for count, zero, one in zip(seen, under0, under1, strict=True))

    def decide(self, counts: Sequence[int]) -> Decision | None:
        """Return the decision; None: more results are needed."""
        llr = self.llr(counts)
        return "pass" if llr >= self.upper else "fail" if llr <= self.lower else None
