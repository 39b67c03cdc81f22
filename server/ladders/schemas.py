"""What the API says of ladders, and what it is told."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from server.kit.http.fields import Name, Read, Text, Time, Write
from server.kit.http.listing import ListPage
from server.ladders.rating_systems import INITIAL_MU, INITIAL_SIGMA
from server.ladders.refs import Outcome

Number = Annotated[float, Field(ge=-1e9, le=1e9)]
PlayerNumber = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]


class LadderRead(Read):
    """A set of players that are compared with each other."""

    id: str
    name: str = Field(description="A run's own ladder is called like the run.")
    description: str
    run_id: str | None = Field(description="The run whose own ladder this is; null for one that was made to be shared.")
    initial_elo: float = Field(description="Of players for whom nothing else is said.")
    players: int = Field(validation_alias="player_seq")
    matches: int = Field(
        validation_alias="match_seq", description="Number of the newest match; superseded ones have numbers, too."
    )
    rated_through: int = Field(description="All matches up to this number are in ratings and payoffs.")
    project: str
    created_at: Time


class LadderPage(ListPage):
    """Ladders."""

    ladders: list[LadderRead]


class LadderCreate(Write):
    """A ladder that runs can share: they name it in `self_play.ladder`."""

    name: Name
    description: Text = ""
    initial_elo: Number | None = Field(default=None, description="Of players for whom nothing else is said; 1200.")


class PlayerRead(Read):
    """A player of a ladder."""

    id: int = Field(description="Counts 1, 2, 3, ... in the ladder.")
    name: str = Field(
        description="Of a run's policy `RUN/BEHAVIOR`, of a snapshot of it `RUN/BEHAVIOR#NUMBER`, RUN being the run's "
        "present name; others are named when they are registered."
    )
    kind: str = Field(
        description="`policy` (the one that a run trains), `snapshot` (of it), `checkpoint`, `scripted` or `human`."
    )
    run_id: str | None
    behavior: str | None
    snapshot: int | None = Field(description="Its number.")
    checkpoint_id: str | None
    step: int | None = Field(
        description="Steps for which the policy had learnt: a snapshot's when it was taken, a learning one's in its "
        "newest match."
    )
    fixed: bool = Field(description="Its ratings are given and never change, however it plays.")
    created_at: Time


class PlayerPage(ListPage):
    """Players."""

    players: list[PlayerRead]


class PlayerCreate(Write):
    """A player whose matches are reported over the API."""

    name: Name
    kind: Literal["scripted", "human", "checkpoint"]
    checkpoint_id: Annotated[str, StringConstraints(pattern=r"^ckpt_[0-9a-z]{26}$")] | None = Field(
        default=None, description="Of any run, or uploaded; for kind `checkpoint`."
    )
    behavior: Text | None = Field(default=None, description="Whose policy of the checkpoint it is.")
    elo: Number | None = Field(default=None, description="To begin with; the ladder's `initial_elo`.")
    mu: Number = Field(default=INITIAL_MU, description="To begin with.")
    sigma: float = Field(default=INITIAL_SIGMA, gt=0, le=1e9, description="To begin with.")
    fixed: bool = Field(default=False, description="Its ratings stay what they are at the beginning.")


class RatingRead(Read):
    """How strong a player is."""

    id: int = Field(description="The player's number.")
    name: str
    kind: str
    run_id: str | None
    behavior: str | None
    snapshot: int | None
    step: int | None
    fixed: bool
    elo: float = Field(description="As ML-Agents computes it: K = 1, scale 400.")
    mu: float = Field(description="Mean of what is believed of its strength (Weng and Lin 2011), at first 25.")
    sigma: float = Field(description="Deviation of that belief, at first 25/3.")
    ordinal: float = Field(description="mu - 3 sigma: what its strength very probably exceeds.")
    games: int = Field(description="Rated matches against other players.")


class RatingPage(ListPage):
    """Ratings, and how far they have come."""

    matches: int = Field(description="Number of the ladder's newest match.")
    rated_through: int = Field(description="All matches up to this number are in the ratings.")
    ratings: list[RatingRead]


class RatingSeries(Read):
    """A player's ratings over its matches in columns, thinned to evenly spaced ones; the last entry is the newest."""

    id: int
    name: str
    total: int = Field(description="The player's rated matches.")
    games: list[int] = Field(description="Which of them each entry follows, from 1.")
    matches: list[int] = Field(description="Their numbers in the ladder.")
    steps: list[int | None] = Field(description="Steps for which the policy had learnt.")
    times: list[Time]
    elo: list[float]
    mu: list[float]
    sigma: list[float]


class RatingHistory(Read):
    """One series per player."""

    rated_through: int = Field(description="All matches up to this number are in it.")
    series: list[RatingSeries]


class PayoffPlayer(Read):
    """A row and column of the matrix."""

    id: int
    name: str
    kind: str


class PayoffRead(Read):
    """How each player did against each other one: rows against columns, in the players' order."""

    rated_through: int = Field(description="All matches up to this number are in it.")
    players: list[PayoffPlayer]
    wins: list[list[int]]
    draws: list[list[int]]
    losses: list[list[int]]
    games: list[list[int]]
    scores: list[list[float | None]] = Field(
        description="Mean score, a draw being half a win; null where they never met."
    )


class SeatRead(Read):
    """One side of a match."""

    player: int = Field(description="The player's number.")
    name: str
    team: int
    rank: int = Field(description="1 is best; equal ones drew.")
    score: float | None = Field(description="As it was reported; null where the outcome was.")
    step: int | None = Field(description="Steps for which the policy had learnt.")


class MatchRead(Read):
    """A finished match."""

    seq: int = Field(description="Counts 1, 2, 3, ... in the ladder; the order in which matches are rated.")
    at: Time
    outcome: str = Field(description="Of the first seat: `win`, `draw` or `loss`.")
    truncated: bool = Field(description="It was interrupted.")
    rated: bool = Field(description="It counts. One whose opponents changed meanwhile does not.")
    superseded_by: int | None = Field(
        description="The attempt that went on from before this match; it does not count any more."
    )
    run_id: str | None = Field(description="The run that played it; null, as are the next six, if it was reported.")
    epoch: int | None
    behavior: str | None = Field(description="Whose team learnt.")
    number: int | None = Field(description="Counts the matches of that behavior in the run.")
    simulator: int | None
    step: int | None
    elo: float | None = Field(description="Of the learning policy after it, by the trainer's own reckoning.")
    seats: list[SeatRead]


class MatchPage(ListPage):
    """Matches, newest first."""

    matches: list[MatchRead]


class SeatReport(Write):
    """One side of a match."""

    player: PlayerNumber | Name = Field(description="Its number, or the name that it was registered by.")
    team: int = Field(default=0, ge=0, le=2**31 - 1)
    score: float | None = Field(
        default=None, allow_inf_nan=True, description="The higher, the better; equal ones drew. A finite number."
    )


class MatchReport(Write):
    """A match that was played elsewhere: either every seat has a score, or the first one an outcome."""

    seats: list[SeatReport] = Field(max_length=100, description="At least two, of different players.")
    outcome: Outcome | None = Field(default=None, description="Of the first seat against all others.")
    at: Time | None = Field(default=None, description="When it ended; now if not given.")
    truncated: bool = False
