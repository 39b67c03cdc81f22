"""Demonstrations: recordings of good behavior."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RecordedObservation:
    """One observation of an agent."""

    name: str
    shape: tuple[int, ...]
    """For one agent: (size), (channels, height, width) or (entities, size)."""
    dtype: str
    """`float32` or `uint8`."""
    type: str
    """`default` or `goal_signal`."""
    dimension_properties: tuple[str, ...]
    """As many as `shape` has, or none."""


@dataclass(frozen=True, kw_only=True)
class RecordedActions:
    """The actions of an agent."""

    continuous_size: int
    discrete_branches: tuple[int, ...]
    """Number of choices of each branch."""


@dataclass(frozen=True, kw_only=True)
class RecordedBehavior:
    """Observations and actions of a behavior."""

    name: str
    observations: tuple[RecordedObservation, ...]
    actions: RecordedActions


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and range over complete episodes."""

    mean: float
    std: float
    minimum: float
    maximum: float


@dataclass(frozen=True, kw_only=True)
class DemonstrationStatistics:
    """The content of a demonstration, in numbers."""

    transitions: int
    episodes: int
    """Complete ones, which `returns` and `lengths` describe."""
    fragments: int
    """Pieces without their beginning or end: cut recordings, sampled transitions."""
    terminated: int
    """Number of pieces that ended by termination."""
    truncated: int
    """Pieces that a limit ended."""
    returns: Spread | None = None
    """Undiscounted; null without a complete episode."""
    lengths: Spread | None = None
    """Steps; null without a complete episode."""
    continuous: tuple[tuple[int, ...], ...]
    """For each continuous action, how often it lay in each of 20 equal bins over [-1, 1]."""
    discrete: tuple[tuple[int, ...], ...]
    """For each branch, how often each choice was taken."""


@dataclass(frozen=True, kw_only=True)
class DemonstrationSummary:
    """A demonstration in a list."""

    id: str
    name: str
    """For people; not unique."""
    behavior: str
    """The behavior that was recorded, as its simulator named it."""
    format: str
    """`mlagents` (a `.demo` file) or `ludus` (`.npz`)."""
    spec: RecordedBehavior
    transitions: int
    episodes: int
    """Complete ones."""
    mean_return: float | None = None
    """Of the complete episodes; null without any."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Of the file, lower-case hexadecimal; also the ETag of the download."""
    origin: dict[str, Any]
    """The demonstrations that it was merged or subsampled from; empty if uploaded."""
    project: str = "default"
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Demonstration(DemonstrationSummary):
    """A recording of good behavior, with its statistics."""

    summary: DemonstrationStatistics
    """Episodes, returns and actions."""
