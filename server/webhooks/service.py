"""Commands on webhooks: make, change, delete, give a new secret, send again. Within the caller's transaction."""

from typing import Annotated, Final

from pydantic import Field, StringConstraints, model_validator

from ludus.validation import Form
from server.kit.db.database import Session
from server.kit.db.ids import new_id
from server.kit.http.fields import Name, Tag, Text, Write
from server.runs.repository import RunRepository
from server.webhooks.errors import WebhookDisabled
from server.webhooks.guard import check_url
from server.webhooks.messages import new_secret
from server.webhooks.models import PATTERN, Delivery, DisabledReason, Webhook
from server.webhooks.repository import DeliveryRepository, WebhookRepository

TEST_HOLD_SECONDS: Final = 300.0
"""A test message that was not sent (its server died) is sent like all others after this time."""


Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Pattern = Annotated[str, Form("a type of events: small letters, digits, underscores, and `*` for anything", PATTERN)]
Patterns = Annotated[
    list[Pattern],
    Field(
        min_length=1,
        max_length=50,
        description="Types of events; `*` stands for anything: `run_*`, `checkpoint_saved`, `*`.",
    ),
]


class WebhookCreate(Write):
    """A webhook that is to be made."""

    url: Url
    """Where messages are sent: `https://...`."""
    events: Patterns = Field(default=["*"])
    description: Text = ""
    run: Name | None = None
    """Id or name of a run: only its events."""
    tag: Tag | None = None
    """Only events of runs with this tag."""


class WebhookUpdate(Write):
    """Changes of a webhook; fields that are left out stay, and null stands for the default."""

    url: Url | None = None
    """Has no default: null is refused."""
    events: Patterns | None = None
    description: Text | None = None
    run: Name | None = None
    """Id or name of a run; null: all runs."""
    tag: Tag | None = None
    """A tag; null: any tags."""
    enabled: bool | None = None
    """Enabled again, a webhook receives the events from then on."""

    @model_validator(mode="after")
    def _says_something(self) -> "WebhookUpdate":
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed; name at least one field")
        if "url" in self.model_fields_set and self.url is None:
            raise ValueError("url must not be null: a webhook without an address receives nothing")
        return self


class SecretRotation(Write):
    """The replacement of a secret."""

    overlap_seconds: float = Field(default=86400, ge=0, le=30 * 86400)
    """For so long messages are signed with the old secret, too."""


class WebhookService:
    """Commands on webhooks."""

    def __init__(self, session: Session, *, private: bool) -> None:
        self._session = session
        self._webhooks = WebhookRepository(session)
        self._private = private
        """Whether addresses of the own network are allowed."""

    def create(self, new: WebhookCreate) -> Webhook:
        """Make a webhook; it receives the events from now on. Raises AddressInvalid, RunNotFound."""
        clock = self._webhooks.clock()
        return self._webhooks.save(
            Webhook(
                id=new_id("whk"),
                url=check_url(new.url, private=self._private),
                description=new.description,
                events=list(new.events),
                run_id=self._run_id(new.run),
                tag=new.tag,
                secret=new_secret(),
                enabled=True,
                since=clock,
                created_at=clock,
                updated_at=clock,
            )
        )

    def change(self, webhook_id: str, change: WebhookUpdate) -> Webhook:
        """Change a webhook as a merge patch does: None is a field's default.

        Enabled again, it receives the events from then on, and the messages that waited.
        Raises WebhookNotFound, AddressInvalid, RunNotFound.
        """
        webhook = self._webhooks.lock(webhook_id)
        if change.url is not None:
            webhook.url = check_url(change.url, private=self._private)
        changed = change.model_fields_set
        if "description" in changed:
            webhook.description = change.description or ""
        if "events" in changed:
            webhook.events = list(change.events or ["*"])
        if "run" in changed:
            webhook.run_id = self._run_id(change.run)
        if "tag" in changed:
            webhook.tag = change.tag
        if "enabled" in changed:
            enabled = change.enabled is not False
            if enabled and not webhook.enabled:
                webhook.since = self._webhooks.clock()
                webhook.failing_since = None
            webhook.enabled = enabled
            webhook.disabled_reason = None if enabled else webhook.disabled_reason or DisabledReason.USER
        webhook.updated_at = self._webhooks.clock()
        return webhook

    def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries. Raises WebhookNotFound."""
        self._webhooks.delete(self._webhooks.lock(webhook_id))

    def rotate(self, webhook_id: str, overlap_seconds: float) -> Webhook:
        """Give a webhook a new secret, beside which the old one is good for so long. Raises WebhookNotFound."""
        webhook = self._webhooks.lock(webhook_id)
        clock = self._webhooks.clock()
        webhook.former_secret, webhook.former_until = webhook.secret, clock + overlap_seconds
        webhook.secret = new_secret()
        webhook.updated_at = clock
        return webhook

    def redeliver(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send a message again, with all its retries, after any former result.

        Raises WebhookNotFound, DeliveryNotFound, WebhookDisabled.
        """
        webhook = self._webhooks.lock(webhook_id)
        deliveries = DeliveryRepository(self._session)
        message = deliveries.get(webhook_id, delivery_id)
        if not webhook.enabled:
            raise WebhookDisabled(webhook_id, webhook.disabled_reason or DisabledReason.USER)
        deliveries.redeliver(message)
        return deliveries.get(webhook_id, delivery_id)

    def prepare_test(self, webhook_id: str) -> Delivery:
        """Make a test message, which the caller sends after the commit. Raises WebhookNotFound."""
        return DeliveryRepository(self._session).insert_test(self._webhooks.get(webhook_id).id, TEST_HOLD_SECONDS)

    def _run_id(self, run: str | None) -> str | None:
        return None if run is None else RunRepository(self._session).id_of(run)
