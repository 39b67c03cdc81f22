"""Ladders: players, matches and ratings."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Ladder:
    """A set of players that are compared with each other; `matches` is the number of the newest one."""

    id: str
    name: str
    description: str
    run_id: str | None
    """The run whose own ladder this is; None for one that was made to be shared."""
    initial_elo: float
    players: int
    matches: int
    rated_through: int
    """All matches up to this number are in ratings and payoffs."""
    created_at: datetime


@dataclass(frozen=True)
class Player:
    """A player of a ladder: a run's `policy`, a `snapshot` of it, a `checkpoint`, a `scripted` one or a `human`."""

    id: int
    name: str
    kind: str
    fixed: bool
    created_at: datetime
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    checkpoint_id: str | None = None
    step: int | None = None


@dataclass(frozen=True)
class Rating:
    """How strong a player is: its Elo, and mean and deviation of what is believed of its strength."""

    id: int
    name: str
    kind: str
    fixed: bool
    """The ratings are given and never change."""
    elo: float
    mu: float
    sigma: float
    ordinal: float
    """mu - 3 sigma."""
    games: int
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class RatingSeries:
    """A player's ratings over its matches in columns, thinned to evenly spaced ones; the last entry is the newest."""

    id: int
    name: str
    total: int
    games: tuple[int, ...]
    matches: tuple[int, ...]
    steps: tuple[int | None, ...]
    times: tuple[datetime, ...]
    elo: tuple[float, ...]
    mu: tuple[float, ...]
    sigma: tuple[float, ...]


@dataclass(frozen=True)
class PayoffPlayer:
    """A row and column of a payoff matrix."""

    id: int
    name: str
    kind: str


@dataclass(frozen=True)
class Payoffs:
    """How each player did against each other one: rows against columns, in the players' order."""

    rated_through: int
    players: tuple[PayoffPlayer, ...]
    wins: tuple[tuple[int, ...], ...]
    draws: tuple[tuple[int, ...], ...]
    losses: tuple[tuple[int, ...], ...]
    games: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[float | None, ...], ...]
    """Mean score, a draw being half a win; None where they never met."""


@dataclass(frozen=True)
class Seat:
    """One side of a match. `rank` 1 is best; equal ones drew."""

    player: int
    name: str
    team: int
    rank: int
    score: float | None = None
    step: int | None = None


@dataclass(frozen=True)
class Match:
    """A finished match. `seq` counts in the ladder, `number` among the run's matches of the behavior that learnt."""

    seq: int
    at: datetime
    outcome: str
    """Of the first seat: `win`, `draw` or `loss`."""
    truncated: bool
    rated: bool
    seats: tuple[Seat, ...]
    superseded_by: int | None = None
    run_id: str | None = None
    epoch: int | None = None
    behavior: str | None = None
    number: int | None = None
    simulator: int | None = None
    step: int | None = None
    elo: float | None = None
