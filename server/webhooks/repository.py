"""Webhooks in the database."""

from collections.abc import Sequence

from sqlalchemy import select

from server.kit.db.repository import Repository
from server.webhooks.errors import WebhookNotFound
from server.webhooks.models import Webhook
from server.webhooks.refs import Subscription


class WebhookRepository(Repository):
    """Webhooks, without what was sent to them (`server.webhooks.deliveries.repository`)."""

    def get(self, webhook_id: str) -> Webhook:
        """Return a webhook. Raises WebhookNotFound."""
        webhook = self._session.get(Webhook, webhook_id)
        if webhook is None:
            raise WebhookNotFound(webhook_id)
        return webhook

    def lock(self, webhook_id: str) -> Webhook:
        """Return a webhook, locked until the commit. Raises WebhookNotFound."""
        webhook = self._locked(select(Webhook).where(Webhook.id == webhook_id))
        if webhook is None:
            raise WebhookNotFound(webhook_id)
        return webhook

    def delete(self, webhook: Webhook) -> None:
        """Remove a webhook with its deliveries."""
        self._session.delete(webhook)

    def subscriptions(self, *, lock: bool = False) -> Sequence[Subscription]:
        """Return the subscriptions of the enabled webhooks; with `lock` none of them is deleted before the commit."""
        query = select(Webhook).where(Webhook.enabled).order_by(Webhook.id)
        webhooks = self._session.scalars(query.with_for_update(read=True, key_share=True) if lock else query)
        return [
            Subscription(webhook.id, webhook.project, tuple(webhook.events), webhook.run_id, webhook.tag, webhook.since)
            for webhook in webhooks
        ]
