"""The port through which the server wakes workers; `server.kit.queue` implements it with Celery."""

from typing import Protocol


class WakeUp(Protocol):
    """Wakes workers for runs that wait. A lost message is harmless: the controller sends it again."""

    def wake(self, run_id: str) -> None:
        """Wake the workers for a run."""
        ...

    def ping(self) -> None:
        """Check that the broker answers. Raises BrokerUnavailable."""
        ...

    def pending(self) -> int:
        """Return the number of messages that no worker has taken yet. Raises BrokerUnavailable."""
        ...
