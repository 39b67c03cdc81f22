"""Matches and players as values that outlive a session, and errors of ladders."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from server.kit.errors import Conflict, Invalid, NotFound


class LadderNotFound(NotFound, code="ladder_not_found"):
    """No ladder has this id or name, and no run of this id or name has one."""

    ladder: str
    sentence = "There is no ladder {ladder!r}, nor a run of that name with one. List the ladders."


class PlayerNotFound(NotFound, code="player_not_found"):
    """The ladder has no such player."""

    ladder_id: str
    player: int | str
    sentence = "Ladder {ladder_id} has no player {player!r}. List its players, or register this one."


class LadderExists(Conflict, code="ladder_exists"):
    """A ladder cannot be created because another one has its name."""

    name: str
    sentence = "There is a ladder {name!r} already. Use it, or choose another name."


class LadderInUse(Conflict, code="ladder_in_use"):
    """A ladder cannot be deleted: a run that has not ended plays on it."""

    ladder_id: str
    run_id: str
    sentence = (
        "The matches of run {run_id}, which has not ended, go to ladder {ladder_id}. Wait for its end, or cancel it, "
        "and delete the ladder then."
    )


class PlayerExists(Conflict, code="player_exists"):
    """The ladder has a player of this name."""

    ladder_id: str
    name: str
    sentence = "Ladder {ladder_id} has a player {name!r} already. Use it, or choose another name."


class MatchInvalid(Invalid, code="invalid_match"):
    """The report is not a valid match."""

    problem: str
    sentence = "The match cannot be entered: {problem}."


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
