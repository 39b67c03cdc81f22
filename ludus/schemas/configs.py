"""Stored configurations, and what became of one of an older release."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ludus.schemas.errors import ProblemDetail


@dataclass(frozen=True)
class ConfigSummary:
    """One version of a stored configuration, without its content."""

    name: str
    version: int
    description: str
    digest: str
    created_at: datetime


@dataclass(frozen=True)
class ConfigVersion:
    """One immutable version of a stored configuration: as it was sent, and with every default filled in."""

    name: str
    version: int
    description: str
    digest: str
    created_at: datetime
    source: str
    resolved: dict[str, Any]


@dataclass(frozen=True)
class ConfigChange:
    """One difference: a key was `added`, `removed` (`old` is its value) or `changed`."""

    path: str
    kind: str
    old: Any = None
    new: Any = None


@dataclass(frozen=True)
class ConfigDiff:
    """Differences between the resolved forms of two versions."""

    name: str
    old: int
    new: int
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True)
class ConfigRewrite:
    """Something of an older configuration that is written otherwise now; `*` in a path stands for each behavior."""

    path: str
    to: str
    why: str
    old: Any = None
    """None where only the place changed, as `new`."""
    new: Any = None


@dataclass(frozen=True)
class ConfigDrop:
    """Something of an older configuration that the new one does not have."""

    path: str
    why: str
    value: Any = None


@dataclass(frozen=True)
class ConfigUpgrade:
    """A configuration in the format of today, as YAML, and what was done to it."""

    document: str
    unchanged: bool
    """It had the format of today already."""
    changes: tuple[ConfigRewrite, ...]
    dropped: tuple[ConfigDrop, ...]
    problems: tuple[ProblemDetail, ...]
    """What is left to do before a run can be made of it."""
