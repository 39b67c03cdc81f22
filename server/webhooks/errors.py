"""Errors of webhooks."""

from server.kit.errors import Conflict, Invalid, NotFound


class WebhookNotFound(NotFound, code="webhook_not_found"):
    """No webhook has this id."""

    webhook_id: str
    sentence = "There is no webhook {webhook_id!r}. List the webhooks to see what there is."


class DeliveryNotFound(NotFound, code="delivery_not_found"):
    """The webhook has no such delivery."""

    webhook_id: str
    delivery_id: str
    sentence = (
        "Webhook {webhook_id} has no delivery {delivery_id!r}. List its deliveries to see what there is; old ones are "
        "removed by retention."
    )


class WebhookDisabled(Conflict, code="webhook_disabled"):
    """A message cannot be sent again while its webhook is disabled."""

    webhook_id: str
    reason: str
    sentence = (
        "Webhook {webhook_id} is disabled ({reason}): nothing is sent to it. Enable it first; its test works without."
    )


class AddressInvalid(Invalid, code="invalid_webhook_url"):
    """Messages may not be sent to a webhook's address."""

    problem: str
    sentence = "The webhook's url cannot be used: {problem}."
