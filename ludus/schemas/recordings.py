"""Recordings of simulators' sessions, and their messages."""

from datetime import datetime

from ludus.schemas.record import FrozenRecord


class Recording(FrozenRecord):
    """A recording of a simulator's session: a file of the messages that it sent and got."""

    id: str
    run_id: str
    attempt: int
    session_id: str
    simulator: int
    """Its number in the run."""
    carrier: str
    """`native` (`ludus.v1`) or `unity`: the protocol of the messages."""
    behaviors: tuple[str, ...]
    """Names that the simulator has announced."""
    cause: str
    """Why it ends. `error`: the session ended in one; `session`: it ended otherwise; `limit`: it is as long as it may
    be; `stopped`: it was switched off, or its collector ended; `behind`: the disk or the network was too slow; `torn`:
    its collector was killed."""
    code: str
    """That of the session's end; empty where it went on."""
    reason: str
    frames: int
    """Messages."""
    seconds: float
    size: int
    """Bytes of the file."""
    sha256: str
    started_at: datetime
    created_at: datetime
    """When it was stored."""


class MessagePart(FrozenRecord):
    """One behavior's part of a message; of many agents the first 64, of many numbers the first 32."""

    behavior: str
    agents: tuple[int, ...]
    """Their ids; empty in answers to all agents that asked, in their order."""
    ended: bool = False
    """Whether these agents' episodes have ended; else they ask for actions, or get them."""
    rewards: tuple[float, ...] = ()
    truncated: tuple[bool, ...] = ()
    """Of ended episodes."""
    observations: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """Of each observation, of each agent: its numbers."""
    continuous: tuple[tuple[float, ...], ...] = ()
    """Actions of each agent."""
    discrete: tuple[tuple[float, ...], ...] = ()


class RecordedFrame(FrozenRecord):
    """One message of a recording, in numbers and words."""

    number: int
    """Counts from 1."""
    seconds: float
    """Since the recording began; below 0 for a message from before."""
    received: bool
    """Whether the game has sent it; else it got it."""
    before: bool = False
    """Whether messages are missing between this one and the next: it introduces the session or a behavior."""
    size: int
    """Bytes."""
    kind: str
    sentence: str
    problem: str | None = None
    """Why its agents cannot be read."""
    behaviors: tuple[MessagePart, ...] = ()


class RecordedFrames(FrozenRecord):
    """A part of a recording's messages."""

    frames: tuple[RecordedFrame, ...]
    next_start: int | None = None
    """The number that the next part begins with; null at the end."""
