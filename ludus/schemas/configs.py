"""Stored configurations, and the conversion of older ones."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

ResolvedConfig = Annotated[dict[str, Any], "RunConfig"]
"""A configuration with every default filled in; the API's description refers to the schema of this name."""


@dataclass(frozen=True, kw_only=True)
class ConfigSummary:
    """One version of a stored configuration, without its content."""

    name: str
    version: int
    """Counts 1, 2, 3, ... per name."""
    description: str
    digest: str
    """SHA-256 of the resolved form as canonical JSON."""
    project: str = "default"
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class ConfigVersion(ConfigSummary):
    """One immutable version of a stored configuration."""

    source: str
    """The document as it was sent."""
    document: dict[str, Any]
    """The source, parsed."""
    resolved: ResolvedConfig
    """With every default filled in."""


@dataclass(frozen=True, kw_only=True)
class ConfigChange:
    """One difference; a whole section that was added or removed is one."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: Any = None
    """Null if added."""
    new: Any = None
    """Null if removed."""


@dataclass(frozen=True, kw_only=True)
class ConfigDiff:
    """The differences between the resolved forms of two versions, or of a version and a run's first configuration."""

    name: str
    old: int
    new: int | None = None
    """Null where it was compared with a run."""
    run: str | None = None
    """The run, as the request named it."""
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, kw_only=True)
class ConfigRewrite:
    """A part of an older configuration that has another form now."""

    path: str
    """The former path; `*` stands for each behavior."""
    to: str
    """The present path."""
    old: Any = None
    """Null where only the path changed."""
    new: Any = None
    why: str


@dataclass(frozen=True, kw_only=True)
class ConfigDrop:
    """A part of an older configuration that the new one does not have."""

    path: str
    """The former path."""
    value: Any = None
    why: str


@dataclass(frozen=True, kw_only=True)
class ConfigProblem:
    """A mistake in a configuration."""

    path: str
    """Dotted keys."""
    code: str
    """Stable name."""
    message: str
    line: int | None = None
    """Line of the key in the text, from 1; of a missing key, that of the nearest parent. Null where a document is no
    text, and where an override has set the value."""
    column: int | None = None
    """Column of the key in this line, from 1."""


@dataclass(frozen=True, kw_only=True)
class ConfigUpgrade:
    """A configuration in the present format, and the changes that were made."""

    document: str
    """YAML; without comments, unless nothing changed."""
    unchanged: bool
    """It had the present format already; the document is the one that was sent."""
    changes: tuple[ConfigRewrite, ...]
    dropped: tuple[ConfigDrop, ...]
    problems: tuple[ConfigProblem, ...]
    """For which a run of it would be refused, with their lines in `document`."""


@dataclass(frozen=True, kw_only=True)
class ConfigWarning(ConfigProblem):
    """A part of a configuration that is legal but probably not intended."""


@dataclass(frozen=True, kw_only=True)
class PresetSummary:
    """A configuration that comes with the server and is known to work, without its text."""

    name: str
    description: str
    """A sentence."""
    trainer_types: tuple[str, ...]
    """Of its behaviors, sorted."""


@dataclass(frozen=True, kw_only=True)
class Preset(PresetSummary):
    """A configuration that comes with the server and is known to work."""

    source: str
    """YAML, with comments."""
