"""Webhooks, and the deliveries to them."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A URL that receives events."""

    id: str
    url: str
    description: str
    events: tuple[str, ...]
    """Types of events; `*` stands for any text."""
    run_id: str | None = None
    """Only this run's events; null for all runs."""
    tag: str | None = None
    """Only events of runs with this tag; null for all runs."""
    enabled: bool
    disabled_reason: str | None = None
    """`user`, `gone` (the receiver answered 410) or `failing` (a message was given up after all its retries, and no
    other was delivered since it was created); null while it is enabled."""
    failing_since: datetime | None = None
    """First failure since the newest success; null if there is none."""
    last_success_at: datetime | None = None
    former_until: datetime | None = None
    """Until then messages are signed with the previous secret, too; null if it was never rotated."""
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class WebhookWithSecret(Webhook):
    """A webhook with its secret, which no later answer has."""

    secret: str = field(repr=False)
    """`whsec_...`, for the receiver's verification. It is shown only once."""


@dataclass(frozen=True, kw_only=True)
class DeliveryAttempt:
    """One attempt to deliver a message."""

    number: int
    """Counts 1, 2, 3, ... per delivery."""
    at: datetime
    """When it ended."""
    seconds: float
    status: int | None = None
    """HTTP status; null where no answer came."""
    error: str | None = None
    """Why it failed, as a sentence; null where it succeeded."""
    response: str | None = None
    """The first characters of the receiver's answer."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message for a webhook, with its attempts."""

    id: str
    """The `webhook-id` of each attempt, by which receivers recognize repetitions."""
    webhook_id: str
    type: str
    """The event's; `webhook_test` for a test."""
    run_id: str | None = None
    seq: int | None = None
    """The event's number in its run."""
    state: str
    """`pending`, `succeeded` or `failed` (given up)."""
    attempts: int
    """Number of attempts so far."""
    next_try_at: datetime | None = None
    """When it is tried again at the latest; null if it is over."""
    waits_for: str | None = None
    """Why a pending message is not sent, as a sentence: its webhook is disabled; null otherwise."""
    created_at: datetime
    ended_at: datetime | None = None
    log: tuple[DeliveryAttempt, ...] = ()
    """All finished attempts, in order."""


@dataclass(frozen=True, kw_only=True)
class DeliveryWithPayload(Delivery):
    """A message for a webhook, with its attempts and its body."""

    payload: str
    """The body, byte for byte."""
