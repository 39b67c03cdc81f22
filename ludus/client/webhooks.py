"""Webhooks: addresses that are told of events, and what was sent to them."""

from collections.abc import Iterator, Sequence

from ludus.client.transport import Transport, segment, without_none
from ludus.schemas import Delivery, Webhook


class Webhooks(Transport):
    """Requests about webhooks."""

    def create_webhook(
        self,
        url: str,
        events: Sequence[str] = ("*",),
        *,
        description: str = "",
        run: str | None = None,
        tag: str | None = None,
        idempotency_key: str | None = None,
    ) -> Webhook:
        """Have an address told of what happens from now on. The answer has the `secret`, and no later one does.

        `events` are types, in which `*` stands for anything; `run` (id or name) and `tag` narrow it down.
        """
        body = without_none({"url": url, "events": list(events), "description": description, "run": run, "tag": tag})
        return self._read(Webhook, self._post("/v1/webhooks", body, idempotency_key))

    def list_webhooks(self, filter: str = "", limit: int | None = None) -> Iterator[Webhook]:  # noqa: A002
        """Iterate over webhooks, newest first."""
        return self._items(Webhook, "/v1/webhooks", "webhooks", {"filter": filter}, limit)

    def get_webhook(self, webhook: str) -> Webhook:
        """Return a webhook by its id."""
        return self._read(Webhook, self._get(f"/v1/webhooks/{segment(webhook)}"))

    def update_webhook(
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
        """Change a webhook; what is None stays, and an empty `run` or `tag` means all."""
        changes = {
            "url": url,
            "events": None if events is None else list(events),
            "description": description,
            "run": run,
            "tag": tag,
            "enabled": enabled,
        }
        return self._read(Webhook, self._patch(f"/v1/webhooks/{segment(webhook)}", without_none(changes)))

    def delete_webhook(self, webhook: str) -> None:
        """Delete a webhook with the log of its deliveries."""
        self._delete(f"/v1/webhooks/{segment(webhook)}")

    def rotate_webhook_secret(self, webhook: str, overlap_seconds: float = 86400.0) -> Webhook:
        """Give a webhook a new `secret`; for so long messages are signed with the old one, too."""
        body = {"overlap_seconds": overlap_seconds}
        return self._read(Webhook, self._post(f"/v1/webhooks/{segment(webhook)}:rotate", body))

    def test_webhook(self, webhook: str) -> Delivery:
        """Send a test message now, and return what the receiver said, in the `log` of the delivery."""
        return self._read(Delivery, self._post(f"/v1/webhooks/{segment(webhook)}:test"))

    def list_deliveries(self, webhook: str, filter: str = "", limit: int | None = None) -> Iterator[Delivery]:  # noqa: A002
        """Iterate over what was sent to a webhook, newest first, without the payloads."""
        path = f"/v1/webhooks/{segment(webhook)}/deliveries"
        return self._items(Delivery, path, "deliveries", {"filter": filter}, limit)

    def get_delivery(self, webhook: str, delivery: str) -> Delivery:
        """Return a delivery with its attempts and its payload."""
        return self._read(Delivery, self._get(f"/v1/webhooks/{segment(webhook)}/deliveries/{segment(delivery)}"))

    def redeliver(self, webhook: str, delivery: str) -> Delivery:
        """Have a message sent again, with all its retries, whatever came of it before."""
        path = f"/v1/webhooks/{segment(webhook)}/deliveries/{segment(delivery)}:redeliver"
        return self._read(Delivery, self._post(path))
