"""Commands on webhooks: make, change, delete, give a new secret, send again. Within the caller's transaction."""

from collections.abc import Sequence
from typing import Final

from server.kit.db.database import Session
from server.kit.db.ids import new_id
from server.runs.repository import RunRepository
from server.webhooks.deliveries.guard import check_url
from server.webhooks.deliveries.repository import DeliveryRepository
from server.webhooks.deliveries.signing import new_secret
from server.webhooks.errors import WebhookDisabled
from server.webhooks.models import Delivery, Webhook
from server.webhooks.refs import DisabledReason
from server.webhooks.repository import WebhookRepository
from server.webhooks.requests import WebhookUpdate

TEST_HOLD_SECONDS: Final = 300.0
"""A test message that was not sent (its server died) is sent like all others after this time."""


class WebhookService:
    """Commands on webhooks."""

    def __init__(self, session: Session, *, private: bool) -> None:
        self._session = session
        self._webhooks = WebhookRepository(session)
        self._private = private
        """Whether addresses of the own network are allowed."""

    def create(
        self, url: str, events: Sequence[str], *, description: str = "", run: str | None = None, tag: str | None = None
    ) -> Webhook:
        """Make a webhook; it receives the events from now on. Raises AddressInvalid, RunNotFound."""
        check_url(url, private=self._private)
        at = self._webhooks.clock()
        return self._webhooks.save(
            Webhook(
                id=new_id("whk"),
                url=url,
                description=description,
                events=list(events),
                run_id=self._run_id(run),
                tag=tag,
                secret=new_secret(),
                enabled=True,
                since=at,
                created_at=at,
                updated_at=at,
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
            self._enable(webhook, enabled=change.enabled is not False)
        webhook.updated_at = self._webhooks.clock()
        return webhook

    def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries. Raises WebhookNotFound."""
        self._webhooks.delete(self._webhooks.lock(webhook_id))

    def rotate(self, webhook_id: str, overlap_seconds: float) -> Webhook:
        """Give a webhook a new secret, beside which the old one is good for so long. Raises WebhookNotFound."""
        webhook = self._webhooks.lock(webhook_id)
        at = self._webhooks.clock()
        webhook.former_secret, webhook.former_until = webhook.secret, at + overlap_seconds
        webhook.secret = new_secret()
        webhook.updated_at = at
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

    def _enable(self, webhook: Webhook, *, enabled: bool) -> None:
        if enabled and not webhook.enabled:
            webhook.since = self._webhooks.clock()
            webhook.failing_since = None
        webhook.enabled = enabled
        webhook.disabled_reason = None if enabled else webhook.disabled_reason or DisabledReason.USER
