"""Ladders: players, matches and ratings."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A set of players that are compared with each other."""

    id: str
    name: str
    """A run's own ladder has the run's name."""
    description: str
    run_id: str | None = None
    """The run that owns this ladder; null for a shared one."""
    initial_elo: float
    """Of players that are registered without an Elo."""
    players: int
    """Number of players."""
    matches: int
    """Number of the newest match; superseded ones have numbers, too."""
    rated_through: int
    """All matches up to this number are in ratings and payoffs."""
    project: str = "default"
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Player:
    """A player of a ladder."""

    id: int
    """Counts 1, 2, 3, ... in the ladder."""
    name: str
    """Of a run's policy `RUN/BEHAVIOR`, of a snapshot of it `RUN/BEHAVIOR#NUMBER`, with the run's present name; others
    are named when they are registered."""
    kind: str
    """`policy` (the one that a run trains), `snapshot` (of it), `checkpoint`, `scripted` or `human`."""
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    """Its number."""
    checkpoint_id: str | None = None
    step: int | None = None
    """Training steps of the policy: of a snapshot when it was taken, of a learning policy in its newest match."""
    fixed: bool
    """Its ratings are given and never change."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Rating:
    """The strength of a player."""

    id: int
    """The player's number."""
    name: str
    kind: str
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    step: int | None = None
    fixed: bool
    elo: float
    """As ML-Agents computes it: K = 1, scale 400."""
    mu: float
    """Mean of the estimated strength (Weng and Lin 2011), 25 at first."""
    sigma: float
    """Standard deviation of the estimate, 25/3 at first."""
    ordinal: float
    """mu - 3 sigma: a value that its strength very probably exceeds."""
    games: int
    """Rated matches against other players."""


@dataclass(frozen=True, kw_only=True)
class RatingSeries:
    """A player's ratings over its matches in columns, thinned to evenly spaced ones; the last entry is the newest."""

    id: int
    name: str
    total: int
    """The player's rated matches."""
    games: tuple[int, ...]
    """The number of rated matches before each entry."""
    matches: tuple[int, ...]
    """Their numbers in the ladder."""
    steps: tuple[int | None, ...]
    """Training steps of the policy."""
    times: tuple[datetime, ...]
    elo: tuple[float, ...]
    mu: tuple[float, ...]
    sigma: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RatingHistory:
    """One series per player."""

    rated_through: int
    """All matches up to this number are included."""
    series: tuple[RatingSeries, ...]


@dataclass(frozen=True, kw_only=True)
class PayoffPlayer:
    """A row and column of the payoff matrix."""

    id: int
    name: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Payoffs:
    """Results of each player against each other one: rows against columns, in the players' order."""

    rated_through: int
    """All matches up to this number are included."""
    players: tuple[PayoffPlayer, ...]
    wins: tuple[tuple[int, ...], ...]
    draws: tuple[tuple[int, ...], ...]
    losses: tuple[tuple[int, ...], ...]
    games: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[float | None, ...], ...]
    """Mean score, a draw counting as half a win; null where they never met."""


@dataclass(frozen=True, kw_only=True)
class Participant:
    """One side of a match."""

    player: int
    """The player's number."""
    name: str
    team: int
    rank: int
    """1 is best; participants with equal ranks drew."""
    score: float | None = None
    """The reported score; null where the outcome was reported."""
    step: int | None = None
    """Training steps of the policy."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A finished match."""

    seq: int
    """Counts 1, 2, 3, ... in the ladder; the order in which matches are rated."""
    at: datetime
    outcome: str
    """Of the first participant: `win`, `draw` or `loss`."""
    truncated: bool
    """It was interrupted."""
    rated: bool
    """Whether the match counts. A match whose opponents changed during it does not."""
    superseded_by: int | None = None
    """The attempt that continued from before this match; the match does not count any more."""
    run_id: str | None = None
    """The run that played it; null, as are the next six, if it was reported."""
    attempt: int | None = None
    behavior: str | None = None
    """The behavior whose team learned."""
    number: int | None = None
    """Counts the matches of that behavior in the run."""
    simulator: int | None = None
    step: int | None = None
    elo: float | None = None
    """Of the learning policy after the match, as the trainer computed it."""
    participants: tuple[Participant, ...]
