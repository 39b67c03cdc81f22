"""What the API needs of the queue."""

from typing import Protocol


class Bell(Protocol):
    """Wakes workers, and can be asked whether it works."""

    def ring(self, run_id: str) -> None:
        """Tell the workers that a run waits. Losing a ring is harmless."""
        ...

    def ping(self) -> None:
        """Ask the broker for a sign of life. Raises BrokerUnavailable."""
        ...
