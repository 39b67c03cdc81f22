"""The other end of a trainer that runs in the test's own process."""

from worker.trainer.messages import Command, EventRecord, Message, Order


class Supervisor:
    """Remembers what it is told; wants nothing, or that the run is cancelled."""

    def __init__(self, *, cancels: bool = False) -> None:
        self.told: list[Message] = []
        self._cancels = cancels

    def post(self, message: Message) -> None:
        """Take a message."""
        self.told.append(message)

    def commands(self) -> list[Order]:
        """Return what the trainer should do."""
        return [Command(action="cancel")] if self._cancels else []

    def events(self) -> dict[str, EventRecord]:
        """Return the events by name; each may have been told once."""
        events = [message for message in self.told if isinstance(message, EventRecord)]
        assert len({event.name for event in events}) == len(events), "each is told once"
        return {event.name: event for event in events}
