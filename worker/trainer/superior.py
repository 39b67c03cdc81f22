"""Who gives a trainer its job, and hears what becomes of it."""

from typing import Protocol

import structlog

from worker.trainer.link import EventRecord, Level, Message, Order

log = structlog.get_logger()


class Superior(Protocol):
    """Whoever gives the job: a supervisor's link, or a person's console."""

    def post(self, message: Message) -> None:
        """Report something. Never blocks."""

    def commands(self) -> list[Order]:
        """Return what came in since the last call."""


class Events:
    """Events of the run, told to the superior and to the attempt's log."""

    def __init__(self, superior: Superior) -> None:
        self._superior = superior

    def tell(self, name: str, message: str, *, level: Level = "info", data: dict[str, object] | None = None) -> None:
        """Tell an event: its name for programs, a sentence for people, and the sentence's facts."""
        self.post(EventRecord(name=name, level=level, message=message, data=data or {}))

    def post(self, event: EventRecord) -> None:
        """Tell an event."""
        getattr(log, event.level)(event.name, message=event.message)
        self._superior.post(event)
