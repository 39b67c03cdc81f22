"""The other end of a trainer: where its job and its commands come from, and where its reports go."""

from typing import Protocol

import structlog

from worker.trainer.messages import EventRecord, Level, Message, Order

log = structlog.get_logger()


class SupervisorPort(Protocol):
    """The connection to a supervisor, or the console of a trainer that runs alone."""

    def post(self, message: Message) -> None:
        """Send a report. Never blocks."""

    def commands(self) -> list[Order]:
        """Return what has arrived since the last call."""


class Events:
    """Reports events of the run: to the supervisor, and in the attempt's log."""

    def __init__(self, supervisor: SupervisorPort) -> None:
        self._supervisor = supervisor

    def report(self, name: str, message: str, *, level: Level = "info", data: dict[str, object] | None = None) -> None:
        """Report an event: its name for programs, a sentence for people, and the facts in the sentence."""
        self.post(EventRecord(name=name, level=level, message=message, data=data or {}))

    def post(self, event: EventRecord) -> None:
        """Report an event that is already put into words."""
        getattr(log, event.level)(event.name, message=event.message)
        self._supervisor.post(event)
