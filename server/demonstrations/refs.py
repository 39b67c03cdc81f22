"""Demonstrations as values that outlive a session."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DemonstrationRef:
    """A stored demonstration's file."""

    id: str
    name: str
    """For people."""
    path: str
    """In the artifact store."""
    sha256: str
    """Lower-case hexadecimal."""

    @property
    def label(self) -> str:
        """Its name and id in messages; the id alone where it has no other name."""
        return self.id if self.name == self.id else f"{self.name} ({self.id})"
