"""The health of a run: findings that say why it does not learn, or not as it should."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fact about a run that a person should know: a cause with its number, and one remedy."""

    code: str
    """Snake case; docs/health.md has all of them. A behavior has each code once."""
    behavior: str | None = None
    """Null where the whole run is meant."""
    message: str
    """The fact with its number and its cause, as a sentence for people."""
    remedy: str
    """The one change that helps, as a sentence for people."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The numbers of the message, for programs."""
    since_step: int = 0
    """Agent steps of the behavior (or of the run) at which the fact began."""
    since: datetime
    """When it was found."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The findings of a run."""

    findings: tuple[Finding, ...] = ()
    """Those that hold now, oldest first; once the run has ended, those that held at its end. Empty where all is well,
    and while there is nothing to measure."""
