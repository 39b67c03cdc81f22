"""What the API says of assessments."""

from typing import Annotated, Literal

from pydantic import Field

from server.kit.http.fields import Read, Time

Verdict = Literal["pass", "fail", "undecided"]
_VERDICT = "Null while it goes on."


class MatchResult(Read):
    """A candidate against a champion."""

    kind: Literal["match"]
    verdict: Verdict | None = Field(description=_VERDICT)
    behavior: str
    candidate: str = Field(description="Its checkpoint.")
    champion: str = Field(description="Its checkpoint.")
    games: int
    wins: int = Field(description="Of the candidate.")
    draws: int
    losses: int
    paired: bool = Field(description="Games count in pairs of the same seed with swapped sides; else each by itself.")
    pairs: list[int] | None = Field(description="How many pairs brought the candidate 0, 1, 2, 3 and 4 half points.")
    score: float | None = Field(description="Mean of 1 for a win and 1/2 for a draw.")
    elo: float | None = Field(description="Lead of the candidate; null where all games, or none, were won.")
    elo_low: float | None = Field(description="Lower end of its 95 % score interval; null: unbounded.")
    elo_high: float | None = Field(description="Upper end; null: unbounded.")
    llr: float = Field(description="Log-likelihood ratio of a lead of `elo1` against one of `elo0`.")
    llr_lower: float = Field(description="At or below it the candidate fails.")
    llr_upper: float = Field(description="At or above it the candidate passes.")
    elo0: float
    elo1: float
    alpha: float
    beta: float
    max_games: int


class EvaluationResult(Read):
    """A policy that plays alone."""

    kind: Literal["evaluate"]
    verdict: Verdict | None = Field(description=_VERDICT)
    behavior: str
    checkpoint: str
    episodes: int = Field(description="Played so far.")
    wanted: int
    seeded: bool = Field(description="Simulators take the seeds of episodes from the run.")
    mean: float | None = Field(description="Of the undiscounted returns.")
    low: float | None = Field(
        description="Lower end of the interval of the mean, bootstrapped; null: a single episode has none."
    )
    high: float | None
    confidence: float
    deviation: float | None
    least: float | None
    most: float | None
    mean_length: float | None = Field(description="Decisions of an episode.")
    threshold: float | None


Result = Annotated[MatchResult | EvaluationResult, Field(discriminator="kind")]


class AssessmentRead(Read):
    """Where a run stands that judges policies."""

    run_id: str
    epoch: int = Field(description="Attempt that said so.")
    result: Result
    updated_at: Time
