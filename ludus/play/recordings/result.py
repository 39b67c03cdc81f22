"""The result of a replay, as values."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """What happened at a frame, then or now."""

    frame: int
    """Its number, from 1."""
    seconds: float
    what: str
    """The message of the game in words."""
    then: str
    """What the server answered when it was recorded; empty if that does not matter."""
    now: str
    differs: bool

    @property
    def matters(self) -> bool:
        """Whether it is more than an answer of the same kind."""
        return self.differs or bool(self.then) or self.now.startswith("a problem")


@dataclass(slots=True)
class Replayed:
    """The result of a replay."""

    frames: int = 0
    received: int = 0
    """Messages of the game that were played."""
    answers: int = 0
    """Messages of the server, now."""
    steps: int = 0
    """Steps of experience that were delivered."""
    ended: bool = False
    """Whether the session has ended now: the rest was not played."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """Findings that differ."""
        return sum(finding.differs for finding in self.findings)
