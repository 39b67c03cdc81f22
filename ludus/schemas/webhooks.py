"""Webhooks, and what was sent to them."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Webhook:
    """An address that is told of events."""

    id: str
    url: str
    description: str
    events: tuple[str, ...]
    """Types of events; `*` stands for anything."""
    enabled: bool
    created_at: datetime
    updated_at: datetime
    run_id: str | None = None
    tag: str | None = None
    disabled_reason: str | None = None
    """`user`, `gone` (the receiver answered 410) or `failing`."""
    failing_since: datetime | None = None
    last_success_at: datetime | None = None
    former_until: datetime | None = None
    """Until then messages are signed with the secret before the present one, too."""
    secret: str | None = field(default=None, repr=False)
    """`whsec_...`; only in the answer that made it."""


@dataclass(frozen=True)
class DeliveryAttempt:
    """One try to deliver a message."""

    number: int
    at: datetime
    seconds: float
    status: int | None = None
    """Of HTTP; None where no answer came."""
    error: str | None = None
    """Why it failed; None where it succeeded."""
    response: str | None = None
    """How the receiver's answer began."""


@dataclass(frozen=True)
class Delivery:
    """A message for a webhook, and what became of it: `pending`, `succeeded` or `failed`."""

    id: str
    """The `webhook-id` of each attempt."""
    webhook_id: str
    type: str
    state: str
    attempts: int
    created_at: datetime
    run_id: str | None = None
    seq: int | None = None
    """The event's number in its run."""
    next_try_at: datetime | None = None
    waits_for: str | None = None
    """Why it is not sent although it is pending: its webhook is disabled."""
    ended_at: datetime | None = None
    log: tuple[DeliveryAttempt, ...] = ()
    payload: str | None = None
    """What is sent, byte for byte; absent in lists."""
