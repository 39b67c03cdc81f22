"""What the API says of webhooks and their deliveries, and what it is told."""

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from server.kit.http.fields import Name, Read, Tag, Text, Time, Write
from server.kit.http.listing import ListPage
from server.webhooks.refs import PATTERN

Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Pattern = Annotated[str, StringConstraints(pattern=PATTERN)]
Patterns = Annotated[
    list[Pattern],
    Field(
        min_length=1,
        max_length=50,
        description="Types of events; `*` stands for anything: `run_*`, `checkpoint_saved`, `*`.",
    ),
]


class WebhookRead(Read):
    """An address that is told of events."""

    id: str
    url: str
    description: str
    events: list[str] = Field(description="Types of events; `*` stands for anything.")
    run_id: str | None = Field(description="Only this run's events; null for all runs.")
    tag: str | None = Field(description="Only events of runs with this tag; null for all runs.")
    enabled: bool
    disabled_reason: str | None = Field(
        description="`user`, `gone` (the receiver answered 410) or `failing` (a message was given up after all its "
        "retries, and none had come through since it was made); null while it is enabled."
    )
    failing_since: Time | None = Field(description="First failure since the newest success; null if there is none.")
    last_success_at: Time | None
    former_until: Time | None = Field(
        description="Until then messages are signed with the secret before the present one, too; null if it was never "
        "rotated."
    )
    created_at: Time
    updated_at: Time


class WebhookSecret(WebhookRead):
    """A webhook with its secret, which no later answer shows."""

    secret: str = Field(description="`whsec_...`, for the receiver's verification. Keep it: it is shown only now.")


class WebhookPage(ListPage):
    """Webhooks."""

    webhooks: list[WebhookRead]


class WebhookCreate(Write):
    """A webhook that is to be made."""

    url: Url = Field(description="Where messages are sent: `https://...`.")
    events: Patterns = Field(default=["*"])
    description: Text = ""
    run: Name | None = Field(default=None, description="Id or name of a run: only its events.")
    tag: Tag | None = Field(default=None, description="Only events of runs with this tag.")


class WebhookUpdate(Write):
    """What is to change; what is left out stays."""

    url: Url | None = None
    events: Patterns | None = None
    description: Text | None = None
    run: Name | Annotated[str, StringConstraints(max_length=0)] | None = Field(
        default=None, description="Id or name of a run; the empty text: all runs."
    )
    tag: Tag | Annotated[str, StringConstraints(max_length=0)] | None = Field(
        default=None, description="A tag; the empty text: whatever the tags."
    )
    enabled: bool | None = Field(
        default=None, description="Enabled again, a webhook is told of what happens from then on."
    )

    @model_validator(mode="after")
    def _says_something(self) -> "WebhookUpdate":
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed; name at least one field")
        return self


class SecretRotation(Write):
    """How a secret is replaced."""

    overlap_seconds: float = Field(
        default=86400, ge=0, le=30 * 86400, description="For so long messages are signed with the old secret, too."
    )


class AttemptRead(Read):
    """One try to deliver a message."""

    number: int = Field(description="Counts 1, 2, 3, ... per delivery.")
    at: Time = Field(description="When it ended.")
    seconds: float
    status: int | None = Field(description="Of HTTP; null where no answer came.")
    error: str | None = Field(description="Why it failed, as a sentence; null where it succeeded.")
    response: str | None = Field(description="How the receiver's answer began.")


class DeliverySummary(Read):
    """A message for a webhook, and what became of it."""

    id: str = Field(description="The `webhook-id` of each attempt: receivers know repetitions by it.")
    webhook_id: str
    type: str = Field(description="The event's; `webhook_test` for a test.")
    run_id: str | None
    seq: int | None = Field(description="The event's number in its run.")
    state: str = Field(description="`pending`, `succeeded` or `failed` (given up).")
    attempts: int = Field(description="Tries so far.")
    next_try_at: Time | None = Field(description="When it is tried again at the latest; null if it is over.")
    created_at: Time
    ended_at: Time | None


class DeliveryLog(DeliverySummary):
    """A message for a webhook, with its attempts."""

    waits_for: str | None = Field(
        description="Why a pending message is not sent, as a sentence: its webhook is disabled; null where it is sent "
        "at `next_try_at`, or over."
    )
    log: list[AttemptRead] = Field(description="All attempts that are over, in order.")


class DeliveryRead(DeliveryLog):
    """A message for a webhook, with its attempts and what was sent."""

    payload: str = Field(description="The body, byte for byte.")


class DeliveryPage(ListPage):
    """Deliveries."""

    deliveries: list[DeliveryLog]
