"""Demonstrations as values that outlive a session."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DemonstrationRef:
    """A stored demonstration's file."""

    id: str
    path: str
    """In the artifact store."""
    sha256: str
    """Lower-case hexadecimal."""
