"""Webhooks as values: their subscriptions, and the states of messages. No database."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

PATTERN: Final = r"^[a-z0-9_*]{1,64}$"
"""The form of patterns of event types."""


class DisabledReason(StrEnum):
    """Why a webhook gets no messages."""

    USER = "user"
    GONE = "gone"
    """Its receiver answered 410 Gone."""
    FAILING = "failing"
    """A message was given up, and none had come through since it was made."""


class DeliveryState(StrEnum):
    """Where a message stands."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Given up after the last retry, or because the receiver is gone."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The events that a webhook receives."""

    webhook_id: str
    project: str
    """The project of the runs."""
    events: Sequence[str]
    """Patterns of event types; `*` stands for anything."""
    run_id: str | None
    tag: str | None
    since: float
    """Events from this time on, in seconds since 1970-01-01 UTC, on the database's clock."""

    def covers(self, project: str, run_id: str, tags: Sequence[str], event_type: str, at: float) -> bool:
        """Return whether the webhook receives an event of a run."""
        return (
            at >= self.since
            and self.project == project
            and self.run_id in {None, run_id}
            and (self.tag is None or self.tag in tags)
            and any(matches(pattern, event_type) for pattern in self.events)
        )


def matches(pattern: str, event_type: str) -> bool:
    """Whether a pattern stands for a type of events: `run_*` for `run_created`.

    Never by trying all ways to share a type out among many `*`: the author of a webhook would decide how long it takes.
    """
    return fnmatchcase(event_type, pattern)
