"""The port through which the server wakes workers; `server.kit.queue` implements it with Celery."""

from typing import Protocol


class Wakes(Protocol):
    """Wakes a worker for a run that waits. A lost message is harmless: the controller sends it again."""

    def wake(self, run_id: str) -> None:
        """Wake any slot for a run."""
        ...


class WakeUp(Wakes, Protocol):
    """The port to the broker."""

    def wake(self, run_id: str, kind: str | None = None) -> None:
        """Wake a slot for a run: one of this kind (`Offer.kind`), or any."""
        ...

    def ping(self) -> None:
        """Check that the broker answers. Raises BrokerUnavailable."""
        ...

    def pending(self, kind: str | None = None) -> int:
        """Return the number of messages for slots of this kind, or for any, that no worker has taken yet.

        Raises BrokerUnavailable.
        """
        ...
