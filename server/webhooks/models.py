"""Webhooks, their messages, and the cursor of each run's events."""

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from sqlalchemy import Boolean, Double, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from server.kit.db.base import CLUSTERED, Base, Json, Timestamp, partial_index
from server.kit.db.projects import Owned

PENDING_SQL = "state = 'pending'"
"""Deliveries that are not over. Queries use these words, so that SQLite sees that the index below applies."""
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


class Webhook(Owned, Base):
    """An address that receives the events of its project's runs."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    events: Mapped[list[str]] = mapped_column(Json)
    """Patterns of event types; `*` stands for anything."""
    run_id: Mapped[str | None] = mapped_column(String(40))
    """Only this run's events."""
    tag: Mapped[str | None] = mapped_column(String(100))
    """Only events of runs with this tag."""
    secret: Mapped[str] = mapped_column(String(200))
    """`whsec_...`; in clear, because messages are signed with it."""
    former_secret: Mapped[str | None] = mapped_column(String(200))
    """The one before, with which messages are signed as well until `former_until`."""
    former_until: Mapped[float | None] = mapped_column(Timestamp)
    enabled: Mapped[bool] = mapped_column(Boolean)
    disabled_reason: Mapped[str | None] = mapped_column(String(16))
    """`DisabledReason`; None while it is enabled."""
    since: Mapped[float] = mapped_column(Timestamp)
    """Events from this time on are meant for it: when it was made, or last enabled."""
    failing_since: Mapped[float | None] = mapped_column(Timestamp)
    """First failure after the newest success; None if the newest attempt succeeded, or there is none."""
    last_success_at: Mapped[float | None] = mapped_column(Timestamp)
    created_at: Mapped[float] = mapped_column(Timestamp)
    updated_at: Mapped[float] = mapped_column(Timestamp)

    __table_args__ = (Index(None, "created_at", "id"),)

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


class WebhookCursor(Base):
    """The events of this run up to `seq` have become deliveries, where a webhook subscribes to them.

    Numbers of a run become visible in their order and without gaps (`server.runs.events.repository`), so nothing below
    the cursor can appear later. No foreign key: telling must not wait for those who lock the run.
    """

    __tablename__ = "webhook_cursors"

    run_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer)

    __table_args__ = CLUSTERED


class Delivery(Base):
    """One message for one webhook. Its id is the `webhook-id` of each attempt."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    run_id: Mapped[str | None] = mapped_column(String(40))
    """None for a test."""
    seq: Mapped[int | None] = mapped_column(Integer)
    """The event's number in its run."""
    type: Mapped[str] = mapped_column(String(64))
    payload: Mapped[str] = mapped_column(Text)
    """The body, byte for byte: attempts are alike."""
    state: Mapped[str] = mapped_column(String(16))
    """`DeliveryState`."""
    attempts: Mapped[int] = mapped_column(Integer)
    """Attempts begun; also the fencing number of the newest one."""
    attempts_before: Mapped[int] = mapped_column(Integer)
    """Number of attempts when it was last redelivered; back-off counts from there."""
    next_try_at: Mapped[float | None] = mapped_column(Timestamp)
    """While an attempt is under way: when it counts as lost. None once it is over."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    ended_at: Mapped[float | None] = mapped_column(Timestamp)

    __table_args__ = (
        UniqueConstraint("webhook_id", "run_id", "seq"),
        Index(None, "webhook_id", "created_at", "id"),
        Index(None, "created_at"),
        partial_index("ix_webhook_deliveries_due", "webhook_id", "next_try_at", where=PENDING_SQL),
    )


class DeliveryAttempt(Base):
    """One try to deliver a message, and what came of it."""

    __tablename__ = "webhook_attempts"

    delivery_id: Mapped[str] = mapped_column(ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Timestamp)
    """When it ended."""
    seconds: Mapped[float] = mapped_column(Double)
    status: Mapped[int | None] = mapped_column(Integer)
    """Of HTTP; None where no answer came."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why it failed, as a sentence; None where it succeeded."""
    response: Mapped[str | None] = mapped_column(Text)
    """The first part of the receiver's answer."""
