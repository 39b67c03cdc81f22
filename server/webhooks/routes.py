"""Webhooks over HTTP: subscriptions, deliveries, and a test message."""

import json
from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Response

from ludus import schemas
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import RunNotFound
from server.kit.http.bodies import BodyDep
from server.kit.http.errors import deleted, problems
from server.kit.http.fields import Name
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer, json_command, merge_patch
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.resources import dump, resource
from server.kit.http.services import CommandDep, DatabaseDep, EditDep, Services, ServicesDep
from server.kit.listing import ListQuery, Page
from server.webhooks.errors import AddressInvalid, DeliveryNotFound, WebhookDisabled, WebhookNotFound
from server.webhooks.http_client import DeliveryClient
from server.webhooks.messages import TEST_TYPE
from server.webhooks.models import Delivery, DeliveryAttempt, DeliveryState, DisabledReason, Webhook
from server.webhooks.repository import DeliveryRepository, WebhookRepository
from server.webhooks.sender import HELD_SECONDS, attempt
from server.webhooks.service import SecretRotation, WebhookCreate, WebhookService, WebhookUpdate

HELD = (
    "the webhook is disabled ({reason}); the message is sent if the webhook is enabled within "
    f"{HELD_SECONDS / 86400:g} days of the event, and given up otherwise"
)
"""Why a pending message is not sent."""

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

WEBHOOKS = ListForm(
    "webhooks",
    schemas.Webhook,
    by_name(Webhook.url, Webhook.enabled, Webhook.disabled_reason, Webhook.run_id, Webhook.tag, Webhook.created_at),
    orders=("created_at",),
    key=Webhook.id,
    equality={"run_id", "tag"},
    choices={"disabled_reason": DisabledReason},
)
DELIVERIES = ListForm(
    "deliveries",
    schemas.Delivery,
    DeliveryRepository.COLUMNS,
    orders=("created_at",),
    equality={"run_id"},
    choices={"state": DeliveryState},
)

Kind = TypeVar("Kind", bound=schemas.Delivery)

WebhookKey = Annotated[Name, Path(max_length=40, description="A webhook's id.")]
DeliveryKey = Annotated[Name, Path(max_length=40, description="A delivery's id.")]


@router.get("", response_model=WEBHOOKS.page(), responses=problems(*LIST_PROBLEMS))
def list_webhooks(listing: ListingDep) -> dict[str, object]:
    """List webhooks, newest first."""
    return listing.answer(WEBHOOKS)


@router.post(
    "",
    status_code=201,
    response_model=schemas.WebhookWithSecret,
    **json_command(WebhookCreate, AddressInvalid, RunNotFound),
)
def create_webhook(body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Send future events to an address. Only this answer has the secret."""
    new = body.read(WebhookCreate, {})

    def create(session: Session) -> Answer:
        webhook = _service(services, session).create(new)
        return Answer(201, resource(schemas.WebhookWithSecret, webhook), f"/v1/webhooks/{webhook.id}")

    return command.run(create)


@router.get("/{webhook:name}", responses=problems(WebhookNotFound))
def get_webhook(webhook: WebhookKey, database: DatabaseDep) -> schemas.Webhook:
    """Return one webhook."""
    with database.read() as session:
        return resource(schemas.Webhook, WebhookRepository(session).get(webhook))


@router.patch(
    "/{webhook:name}",
    response_model=schemas.Webhook,
    **merge_patch(WebhookUpdate, WebhookNotFound, AddressInvalid, RunNotFound),
)
def update_webhook(webhook: WebhookKey, body: BodyDep, command: EditDep, services: ServicesDep) -> Response:
    """Change a webhook; while it is disabled, it gets nothing, and its undelivered messages wait."""
    change = body.read(WebhookUpdate, {})

    def update(session: Session) -> Answer:
        command.expects(lambda: resource(schemas.Webhook, WebhookRepository(session).lock(webhook)))
        return Answer(200, resource(schemas.Webhook, _service(services, session).change(webhook, change)))

    return command.run(update)


@router.delete("/{webhook:name}", status_code=204, responses=deleted(WebhookNotFound))
def delete_webhook(webhook: WebhookKey, services: ServicesDep) -> None:
    """Delete a webhook with the log of its deliveries. A message in delivery at this moment may still arrive."""
    with services.database.write() as session:
        _service(services, session).delete(webhook)


@router.post(
    "/{webhook:name}:rotate", response_model=schemas.WebhookWithSecret, **json_command(SecretRotation, WebhookNotFound)
)
def rotate_webhook_secret(webhook: WebhookKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Give a webhook a new secret. For a while messages are signed with both, so that receivers can change over."""
    overlap = body.read(SecretRotation, {}).overlap_seconds
    return command.run(
        lambda session: Answer(
            200, resource(schemas.WebhookWithSecret, _service(services, session).rotate(webhook, overlap))
        )
    )


@router.post(
    "/{webhook:name}:test",
    response_model=schemas.DeliveryWithPayload,
    responses=problems(WebhookNotFound, *COMMAND_PROBLEMS),
)
def test_webhook(webhook: WebhookKey, command: CommandDep, services: ServicesDep) -> Response:
    """Send a test message now, also to a disabled webhook, and return the receiver's answer. It is not retried."""

    def prepare(session: Session) -> Answer:
        return Answer(200, resource(schemas.Delivery, _service(services, session).prepare_test(webhook)))

    response = command.run(prepare)  # answered again without being sent again, if its key was used before
    delivery_id = json.loads(bytes(response.body))["id"]
    settings = services.settings.webhooks
    client = DeliveryClient(private=settings.private_addresses, timeout_seconds=settings.timeout_seconds)
    attempt(services.database, client, settings, delivery_id, 0)
    with services.database.read() as session:
        response.body = response.render(dump(_with_payload(session, webhook, delivery_id)))
    response.headers["content-length"] = str(len(response.body))
    return response


@router.get(
    "/{webhook:name}/deliveries", response_model=DELIVERIES.page(), responses=problems(WebhookNotFound, *LIST_PROBLEMS)
)
def list_deliveries(webhook: WebhookKey, listing: ListingDep) -> dict[str, object]:
    """List the messages to a webhook, newest first, each with its attempts."""

    def fetch(session: Session, query: ListQuery) -> Page[schemas.Delivery]:
        row = WebhookRepository(session).get(webhook)
        deliveries = DeliveryRepository(session)
        page = deliveries.list(webhook, query)
        log = deliveries.attempts([message.id for message in page.items])
        return page.map(lambda message: _delivery(schemas.Delivery, row, message, log[message.id]))

    return listing.answer(DELIVERIES, fetch)


@router.get(
    "/{webhook:name}/deliveries/{delivery:name}",
    responses=problems(WebhookNotFound, DeliveryNotFound),
)
def get_delivery(webhook: WebhookKey, delivery: DeliveryKey, database: DatabaseDep) -> schemas.DeliveryWithPayload:
    """Return one delivery with its attempts and the message."""
    with database.read() as session:
        return _with_payload(session, webhook, delivery)


@router.post(
    "/{webhook:name}/deliveries/{delivery:name}:redeliver",
    response_model=schemas.DeliveryWithPayload,
    responses=problems(WebhookNotFound, DeliveryNotFound, WebhookDisabled, *COMMAND_PROBLEMS),
)
def redeliver(webhook: WebhookKey, delivery: DeliveryKey, command: CommandDep, services: ServicesDep) -> Response:
    """Send a message again, with the same id and all its retries, regardless of earlier results."""

    def send_again(session: Session) -> Answer:
        _service(services, session).redeliver(webhook, delivery)
        return Answer(200, _with_payload(session, webhook, delivery))

    return command.run(send_again)


def _service(services: Services, session: Session) -> WebhookService:
    return WebhookService(session, private=services.settings.webhooks.private_addresses)


def _with_payload(session: Session, webhook: str, delivery: str) -> schemas.DeliveryWithPayload:
    deliveries = DeliveryRepository(session)
    row, message = WebhookRepository(session).get(webhook), deliveries.get(webhook, delivery)
    return _delivery(schemas.DeliveryWithPayload, row, message, deliveries.attempts([delivery])[delivery])


def _delivery(kind: type[Kind], webhook: Webhook, message: Delivery, log: Sequence[DeliveryAttempt]) -> Kind:
    """Return a delivery with its attempts. If its webhook is disabled, it has no next try."""
    fields: dict[str, object] = {"log": [resource(schemas.DeliveryAttempt, attempt) for attempt in log]}
    if message.state == DeliveryState.PENDING and message.type != TEST_TYPE and not webhook.enabled:
        fields |= {"next_try_at": None, "waits_for": HELD.format(reason=webhook.disabled_reason)}
    return resource(kind, message, **fields)
