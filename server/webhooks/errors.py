"""Errors of webhooks."""

from server.kit.errors import Conflict, Invalid, NotFound


class WebhookNotFound(NotFound):
    """No webhook has this id."""

    code = "webhook_not_found"

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"There is no webhook {webhook_id!r}. List the webhooks to see what there is.")
        self.webhook_id = webhook_id


class DeliveryNotFound(NotFound):
    """The webhook has no such delivery."""

    code = "delivery_not_found"

    def __init__(self, webhook_id: str, delivery_id: str) -> None:
        super().__init__(
            f"Webhook {webhook_id} has no delivery {delivery_id!r}. List its deliveries to see what there is; old ones "
            "are removed by retention."
        )
        self.webhook_id = webhook_id
        self.delivery_id = delivery_id


class WebhookDisabled(Conflict):
    """A message cannot be sent again while its webhook is disabled."""

    code = "webhook_disabled"

    def __init__(self, webhook_id: str, reason: str) -> None:
        super().__init__(
            f"Webhook {webhook_id} is disabled ({reason}): nothing is sent to it. Enable it first; its test works "
            "without."
        )
        self.webhook_id = webhook_id
        self.reason = reason


class AddressInvalid(Invalid):
    """A webhook's address is not one that messages may be sent to."""

    code = "invalid_webhook_url"

    def __init__(self, problem: str) -> None:
        super().__init__(f"The webhook's url cannot be used: {problem}.")
        self.problem = problem
