"""Webhooks: URLs that receive events, and the deliveries to them."""

from collections.abc import Iterator, Sequence

from ludus.client.transport import Resource, segment, without_none
from ludus.schemas import Delivery, DeliveryWithPayload, Webhook, WebhookWithSecret


class Webhooks(Resource):
    """Requests about webhooks."""

    def create(
        self,
        url: str,
        events: Sequence[str] = ("*",),
        *,
        description: str = "",
        run: str | None = None,
        tag: str | None = None,
        idempotency_key: str | None = None,
    ) -> WebhookWithSecret:
        """Send events to a URL from now on. Only this answer has the `secret`.

        `events` are types, in which `*` stands for any text; `run` (id or name) and `tag` select runs.
        """
        body = without_none(url=url, events=list(events), description=description, run=run, tag=tag)
        return self._transport.post(WebhookWithSecret, "/v1/webhooks", body, idempotency_key)

    def list(self, filter: str = "", limit: int | None = None) -> Iterator[Webhook]:
        """Iterate over webhooks, newest first."""
        return self._transport.pages(Webhook, "/v1/webhooks", limit, filter=filter)

    def get(self, webhook: str) -> Webhook:
        """Return a webhook by its id."""
        return self._transport.get(Webhook, _path(webhook))

    def update(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        run: str | None = None,
        tag: str | None = None,
        enabled: bool | None = None,
    ) -> Webhook:
        """Change a webhook. None leaves a field unchanged; an empty `run` or `tag` selects all runs."""
        types = None if events is None else list(events)
        body = without_none(url=url, events=types, description=description, enabled=enabled)
        body |= {name: value or None for name, value in (("run", run), ("tag", tag)) if value is not None}
        return self._transport.patch(Webhook, _path(webhook), body)

    def delete(self, webhook: str) -> None:
        """Delete a webhook with the log of its deliveries."""
        self._transport.delete(_path(webhook))

    def rotate_secret(self, webhook: str, overlap_seconds: float = 86400.0) -> WebhookWithSecret:
        """Give a webhook a new `secret`; messages are signed with the old one, too, for `overlap_seconds`."""
        return self._transport.post(WebhookWithSecret, f"{_path(webhook)}:rotate", {"overlap_seconds": overlap_seconds})

    def test(self, webhook: str) -> DeliveryWithPayload:
        """Send a test message now, and return the delivery with the receiver's answer in its `log`."""
        return self._transport.post(DeliveryWithPayload, f"{_path(webhook)}:test")

    def list_deliveries(self, webhook: str, filter: str = "", limit: int | None = None) -> Iterator[Delivery]:
        """Iterate over the deliveries to a webhook, newest first, without the payloads."""
        path = f"{_path(webhook)}/deliveries"
        return self._transport.pages(Delivery, path, limit, filter=filter)

    def get_delivery(self, webhook: str, delivery: str) -> DeliveryWithPayload:
        """Return a delivery with its attempts and its payload."""
        return self._transport.get(DeliveryWithPayload, f"{_path(webhook)}/deliveries/{segment(delivery)}")

    def redeliver(self, webhook: str, delivery: str) -> DeliveryWithPayload:
        """Send a message again, with all its retries, whether it was delivered or not."""
        return self._transport.post(DeliveryWithPayload, f"{_path(webhook)}/deliveries/{segment(delivery)}:redeliver")


def _path(webhook: str) -> str:
    return f"/v1/webhooks/{segment(webhook)}"
