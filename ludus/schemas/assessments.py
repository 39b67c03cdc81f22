"""Results of runs that evaluate policies."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Verdict = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """Games of a candidate against a champion."""

    kind: Literal["match"]
    verdict: Verdict | None = None
    """Null while the run continues."""
    behavior: str
    candidate: str
    """Its checkpoint."""
    champion: str
    """Its checkpoint."""
    games: int
    wins: int
    """Of the candidate."""
    draws: int
    losses: int
    compare: Literal["outcome", "return"] = "outcome"
    """`return`: both played a game of one player in turn, and the higher return won."""
    paired: bool
    """Games count in pairs with the same seed and swapped sides, or compare returns of the same seed; otherwise each
    game counts alone."""
    mean: float | None = None
    """Of the candidate's returns, where these are compared."""
    champion_mean: float | None = None
    """Of the champion's."""
    difference_low: float | None = None
    """Lower end of the 95 % interval of the difference of both means."""
    difference_high: float | None = None
    """Upper end."""
    pairs: tuple[int, ...] | None = None
    """Number of pairs in which the candidate got 0, 1, 2, 3 and 4 half points."""
    score: float | None = None
    """Mean of 1 for a win and 1/2 for a draw."""
    elo: float | None = None
    """Lead of the candidate; null where all games, or none, were won."""
    elo_low: float | None = None
    """Lower end of its 95 % score interval; null: unbounded."""
    elo_high: float | None = None
    """Upper end; null: unbounded."""
    llr: float
    """Log-likelihood ratio of a lead of `elo1` against one of `elo0`."""
    llr_lower: float
    """At or below it the candidate fails."""
    llr_upper: float
    """At or above it the candidate passes."""
    elo0: float
    elo1: float
    alpha: float
    beta: float
    max_games: int


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Episodes of a policy that plays alone."""

    kind: Literal["evaluate"]
    verdict: Verdict | None = None
    """Null while the run continues."""
    behavior: str
    checkpoint: str
    episodes: int
    """Played so far."""
    wanted: int
    seeded: bool
    """Simulators take the seeds of episodes from the run."""
    mean: float | None = None
    """Of the undiscounted returns."""
    low: float | None = None
    """Lower end of the interval of the mean, bootstrapped; null: a single episode has none."""
    high: float | None = None
    """Upper end of the interval."""
    confidence: float
    deviation: float | None = None
    least: float | None = None
    most: float | None = None
    mean_length: float | None = None
    """Decisions per episode."""
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The result so far of a run that evaluates policies."""

    run_id: str
    attempt: int
    """Number of the attempt that reported it."""
    result: MatchResult | EvaluationResult
    checkpoint_runs: dict[str, str] = field(default_factory=dict)
    """The run of each checkpoint in the result, as far as it is there."""
    updated_at: datetime
