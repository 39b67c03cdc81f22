"""The other end of a trainer: where its job and its commands come from, and where its reports go."""

from typing import Protocol

from worker.trainer.messages import Message, Order


class SupervisorPort(Protocol):
    """The connection to a supervisor, or the console of a trainer that runs alone."""

    def post(self, message: Message) -> None:
        """Send a report. Never blocks."""

    def commands(self) -> list[Order]:
        """Return the messages since the last call."""
