"""Matches and players as values that outlive a session."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Outcome = Literal["win", "draw", "loss"]
"""How a match ended for its first participant."""


class PlayerKind(StrEnum):
    """What sits at a participant."""

    POLICY = "policy"
    """The policy that a run trains: it changes from match to match."""
    SNAPSHOT = "snapshot"
    """What that policy was at some step."""
    CHECKPOINT = "checkpoint"
    """A behavior of a stored checkpoint, of any run."""
    SCRIPTED = "scripted"
    """A program of somebody's own."""
    HUMAN = "human"
    """A person."""


@dataclass(frozen=True)
class PlayedParticipant:
    """One side of a match that a run has played."""

    behavior: str
    team: int
    snapshot: int | None
    """Number of the frozen policy; None: the policy that learns."""
    step: int
    """Steps for which the policy had learned."""
    checkpoint: str | None = None
    """The checkpoint of another run that the policy is from; None: it is one of the run that plays."""
    scripted: str | None = None
    """What plays there instead of a policy that was learned, by its name."""


@dataclass(frozen=True)
class PlayedMatch:
    """A match that a run has played, as its trainer reports it."""

    number: int
    """Counts the matches of this behavior in the run, from 1; goes on over attempts."""
    behavior: str
    """Whose team learned; of an assessment: whose policies played."""
    simulator: int | None
    at: float
    """Seconds since 1970-01-01 UTC."""
    step: int
    participants: tuple[PlayedParticipant, ...]
    """The learning side first."""
    outcome: Outcome
    """Of the first participant. Which of several opponents did how well is not known."""
    truncated: bool
    rated: bool
    """Whether it counts: opponents that changed during a match make it unfit for a comparison."""
    elo: float | None
    """Of the learning policy after it, by the trainer's own reckoning; None where none learns."""


@dataclass(frozen=True)
class ReportedParticipant:
    """One side of a match that somebody reports."""

    player: int | str
    """Number or name in the ladder."""
    team: int
    score: float | None = None
    """The higher, the better; equal ones are a draw."""


@dataclass(frozen=True)
class ReportedMatch:
    """A match that was played elsewhere: either every participant has a score, or the first one an outcome."""

    participants: tuple[ReportedParticipant, ...]
    outcome: Outcome | None = None
    at: float | None = None
    """Seconds since 1970-01-01 UTC; None: now."""
    truncated: bool = False
