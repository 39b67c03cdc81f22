"""Matches and players as values that outlive a session."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Outcome = Literal["win", "draw", "loss"]
"""The result of a match for its first participant."""


class PlayerKind(StrEnum):
    """The kind of a player."""

    POLICY = "policy"
    """The policy that a run trains: it changes from match to match."""
    SNAPSHOT = "snapshot"
    """That policy as it was at some step."""
    CHECKPOINT = "checkpoint"
    """A behavior of a stored checkpoint, of any run."""
    SCRIPTED = "scripted"
    """A program of the user."""
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
    """Name of the program that plays instead of a learned policy."""


@dataclass(frozen=True)
class PlayedMatch:
    """A match that a run has played, as its trainer reports it."""

    number: int
    """Counts the matches of this behavior in the run, from 1; goes on over attempts."""
    behavior: str
    """The behavior of the learning team; in an assessment: of the policies under test."""
    simulator: int | None
    at: float
    """Seconds since 1970-01-01 UTC."""
    step: int
    participants: tuple[PlayedParticipant, ...]
    """The learning side first."""
    outcome: Outcome
    """Of the first participant. The order of several opponents is not known."""
    truncated: bool
    rated: bool
    """Whether ratings count it: a match whose opponents changed while it was played compares nothing."""
    elo: float | None
    """Elo of the learning policy after the match, as the trainer computes it; None where none learns."""
