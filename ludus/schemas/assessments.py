"""Results of runs that judge policies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MatchResult:
    """Where a match stands. `verdict` is `pass`, `fail` or `undecided`, None while it goes on; results are the
    candidate's.
    """

    kind: str
    behavior: str
    candidate: str
    champion: str
    games: int
    wins: int
    draws: int
    losses: int
    paired: bool
    llr: float
    llr_lower: float
    llr_upper: float
    elo0: float
    elo1: float
    alpha: float
    beta: float
    max_games: int
    verdict: str | None = None
    pairs: tuple[int, ...] | None = None
    score: float | None = None
    elo: float | None = None
    elo_low: float | None = None
    elo_high: float | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """Where an evaluation stands. `low` and `high` are the ends of the interval of the mean return."""

    kind: str
    behavior: str
    checkpoint: str
    episodes: int
    wanted: int
    seeded: bool
    confidence: float
    verdict: str | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    least: float | None = None
    most: float | None = None
    mean_length: float | None = None
    threshold: float | None = None
