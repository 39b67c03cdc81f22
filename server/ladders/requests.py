"""Request bodies about ladders."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ludus.config.values import CheckpointId
from ludus.validation import OneOf
from server.kit.http.fields import Name, Text, Write
from server.ladders.rating_systems import INITIAL_MU, INITIAL_SIGMA
from server.ladders.refs import Outcome

Number = Annotated[float, Field(ge=-1e9, le=1e9)]
PlayerNumber = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]


class LadderCreate(Write):
    """A ladder that runs can share: they name it in `self_play.ladder`."""

    name: Name
    description: Text = ""
    initial_elo: Number | None = None
    """Of players for whom nothing else is said; 1200."""


class PlayerCreate(Write):
    """A player whose matches are reported over the API."""

    name: Name
    kind: Literal["scripted", "human", "checkpoint"]
    checkpoint_id: CheckpointId | None = None
    """Of any run, or uploaded; for kind `checkpoint`."""
    behavior: Text | None = None
    """The behavior whose policy of the checkpoint plays."""
    elo: Number | None = None
    """To begin with; the ladder's `initial_elo`."""
    mu: Number = INITIAL_MU
    """To begin with."""
    sigma: float = Field(default=INITIAL_SIGMA, gt=0, le=1e9)
    """To begin with."""
    fixed: bool = False
    """Its ratings stay what they are at the beginning."""


class ParticipantReport(Write):
    """One side of a match."""

    player: Annotated[PlayerNumber | Name, OneOf("a player's number or name")]
    """Its number, or the name that it was registered by."""
    team: int = Field(default=0, ge=0, le=2**31 - 1)
    score: float | None = Field(default=None, allow_inf_nan=True)
    """The higher, the better; equal ones drew. A finite number."""


class MatchReport(Write):
    """A match that was played elsewhere: either every participant has a score, or the first one an outcome."""

    participants: list[ParticipantReport] = Field(max_length=100)
    """At least two, of different players."""
    outcome: Outcome | None = None
    """Of the first participant against all others."""
    at: datetime | None = None
    """When it ended; now if not given."""
    truncated: bool = False
