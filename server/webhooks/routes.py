"""Webhooks over HTTP: who is told of events, what was sent to them, and a test."""

import json
from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Response

from server.app.services import CommandDep, DatabaseDep, Services, ServicesDep
from server.kit.db.database import Session
from server.kit.errors import RunNotFound
from server.kit.http import filters
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import NAME
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order
from server.webhooks.deliveries.courier import Courier
from server.webhooks.deliveries.messages import TEST_TYPE
from server.webhooks.deliveries.repository import DeliveryRepository
from server.webhooks.deliveries.sender import HELD_SECONDS, attempt
from server.webhooks.errors import AddressInvalid, DeliveryNotFound, WebhookDisabled, WebhookNotFound
from server.webhooks.models import Delivery, DeliveryAttempt, Webhook
from server.webhooks.refs import DeliveryState, DisabledReason
from server.webhooks.repository import WebhookRepository
from server.webhooks.schemas import (
    AttemptRead,
    DeliveryLog,
    DeliveryPage,
    DeliveryRead,
    DeliverySummary,
    SecretRotation,
    WebhookCreate,
    WebhookPage,
    WebhookRead,
    WebhookSecret,
    WebhookUpdate,
)
from server.webhooks.service import Change, WebhookService

HELD = (
    "the webhook is disabled ({reason}); the message is sent if the webhook is enabled within "
    f"{HELD_SECONDS / 86400:g} days of the event, and given up otherwise"
)
"""Why a pending message is not sent."""

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

WEBHOOKS = ListForm(
    name="webhooks",
    filters={
        "url": Field(filters.word),
        "enabled": Field(filters.flag, EQUALITY),
        "disabled_reason": Field(filters.choice(DisabledReason), EQUALITY),
        "run_id": Field(filters.word, EQUALITY),
        "tag": Field(filters.word, EQUALITY),
        "created_at": Field(filters.time),
    },
    orders=frozenset({"created_at"}),
    default=Order("created_at"),
)
DELIVERIES = ListForm(
    name="deliveries",
    filters={
        "state": Field(filters.choice(DeliveryState), EQUALITY),
        "type": Field(filters.word),
        "run_id": Field(filters.word, EQUALITY),
        "attempts": Field(filters.integer),
        "created_at": Field(filters.time),
    },
    orders=frozenset({"created_at"}),
    default=Order("created_at"),
)
WRITE_PROBLEMS = (AddressInvalid, RunNotFound, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS)

Form = TypeVar("Form", DeliveryLog, DeliveryRead)

WebhookKey = Annotated[str, Path(max_length=40, pattern=NAME, description="A webhook's id.")]
DeliveryKey = Annotated[str, Path(max_length=40, pattern=NAME, description="A delivery's id.")]


@router.get("", response_model=WebhookPage, responses=problems(*LIST_PROBLEMS))
def list_webhooks(listing: ListingDep, database: DatabaseDep) -> WebhookPage:
    """List webhooks, newest first."""
    query = listing.query(WEBHOOKS)
    with database.read() as session:
        page = WebhookRepository(session).list(query)
        found = [WebhookRead.model_validate(each) for each in page.items]
    return WebhookPage(webhooks=found, next_page_token=listing.token(WEBHOOKS, page))


@router.post(
    "",
    status_code=201,
    response_model=WebhookSecret,
    responses=problems(*WRITE_PROBLEMS),
    openapi_extra=declare_json(WebhookCreate),
)
def create_webhook(body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Have an address told of what happens from now on. The answer has the secret, and no later one does."""
    wanted = body.read(WebhookCreate, {})

    def create(session: Session) -> Answer:
        made = _service(services, session).create(
            wanted.url, wanted.events, description=wanted.description, run=wanted.run, tag=wanted.tag
        )
        return Answer(201, WebhookSecret.model_validate(made), f"/v1/webhooks/{made.id}")

    return command.run(create)


@router.get("/{webhook:name}", response_model=WebhookRead, responses=problems(WebhookNotFound))
def get_webhook(webhook: WebhookKey, database: DatabaseDep) -> WebhookRead:
    """Return one webhook."""
    with database.read() as session:
        return WebhookRead.model_validate(WebhookRepository(session).get(webhook))


@router.patch(
    "/{webhook:name}",
    response_model=WebhookRead,
    responses=problems(WebhookNotFound, *WRITE_PROBLEMS),
    openapi_extra=declare_json(WebhookUpdate),
)
def update_webhook(webhook: WebhookKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Change a webhook; disabled, it gets nothing, and what was on its way waits."""
    change = Change(**body.read(WebhookUpdate, {}).model_dump())
    return command.run(
        lambda session: Answer(200, WebhookRead.model_validate(_service(services, session).change(webhook, change)))
    )


@router.delete(
    "/{webhook:name}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It is gone."}, **problems(WebhookNotFound)},
)
def delete_webhook(webhook: WebhookKey, services: ServicesDep) -> Response:
    """Delete a webhook with the log of its deliveries. What is on its way at this moment may still arrive."""
    with services.database.write() as session:
        _service(services, session).delete(webhook)
    return Response(status_code=204)


@router.post(
    "/{webhook:name}:rotate",
    response_model=WebhookSecret,
    responses=problems(WebhookNotFound, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    openapi_extra=declare_json(SecretRotation),
)
def rotate_webhook_secret(webhook: WebhookKey, body: BodyDep, command: CommandDep, services: ServicesDep) -> Response:
    """Give a webhook a new secret. For a while messages are signed with both, so that receivers can change over."""
    overlap = body.read(SecretRotation, {}).overlap_seconds
    return command.run(
        lambda session: Answer(200, WebhookSecret.model_validate(_service(services, session).rotate(webhook, overlap)))
    )


@router.post(
    "/{webhook:name}:test", response_model=DeliveryRead, responses=problems(WebhookNotFound, *COMMAND_PROBLEMS)
)
def test_webhook(webhook: WebhookKey, command: CommandDep, services: ServicesDep) -> Response:
    """Send a test message now, also to a disabled webhook, and return what the receiver said. It is not retried."""

    def prepare(session: Session) -> Answer:
        return Answer(200, DeliverySummary.model_validate(_service(services, session).prepare_test(webhook)))

    response = command.run(prepare)  # answered again without being sent again, if its key was used before
    delivery_id = json.loads(bytes(response.body))["id"]
    settings = services.settings.webhooks
    courier = Courier(private=settings.private_addresses, timeout_seconds=settings.timeout_seconds)
    attempt(services.database, courier, settings, delivery_id, 0)
    response.body = response.render(_read(services.database, webhook, delivery_id).model_dump(mode="json"))
    response.headers["content-length"] = str(len(response.body))
    return response


@router.get(
    "/{webhook:name}/deliveries", response_model=DeliveryPage, responses=problems(WebhookNotFound, *LIST_PROBLEMS)
)
def list_deliveries(webhook: WebhookKey, listing: ListingDep, database: DatabaseDep) -> DeliveryPage:
    """List what was sent to a webhook, newest first, each with its attempts."""
    query = listing.query(DELIVERIES)
    with database.read() as session:
        of = WebhookRepository(session).get(webhook)
        deliveries = DeliveryRepository(session)
        page = deliveries.list(webhook, query)
        log = deliveries.attempts([each.id for each in page.items])
        found = [_logged(DeliveryLog, of, each, log[each.id]) for each in page.items]
    return DeliveryPage(deliveries=found, next_page_token=listing.token(DELIVERIES, page))


@router.get(
    "/{webhook:name}/deliveries/{delivery:name}",
    response_model=DeliveryRead,
    responses=problems(WebhookNotFound, DeliveryNotFound),
)
def get_delivery(webhook: WebhookKey, delivery: DeliveryKey, database: DatabaseDep) -> DeliveryRead:
    """Return one delivery with its attempts and what was sent."""
    return _read(database, webhook, delivery)


@router.post(
    "/{webhook:name}/deliveries/{delivery:name}:redeliver",
    response_model=DeliveryRead,
    responses=problems(WebhookNotFound, DeliveryNotFound, WebhookDisabled, *COMMAND_PROBLEMS),
)
def redeliver(webhook: WebhookKey, delivery: DeliveryKey, command: CommandDep, services: ServicesDep) -> Response:
    """Send a message again, with the same id and all its retries, whatever came of it before."""

    def send_again(session: Session) -> Answer:
        message = _service(services, session).redeliver(webhook, delivery)
        log = DeliveryRepository(session).attempts([delivery])[delivery]
        return Answer(200, _logged(DeliveryRead, WebhookRepository(session).get(webhook), message, log))

    return command.run(send_again)


def _service(services: Services, session: Session) -> WebhookService:
    return WebhookService(session, private=services.settings.webhooks.private_addresses)


def _read(database: DatabaseDep, webhook: str, delivery: str) -> DeliveryRead:
    with database.read() as session:
        of = WebhookRepository(session).get(webhook)
        deliveries = DeliveryRepository(session)
        return _logged(DeliveryRead, of, deliveries.get(webhook, delivery), deliveries.attempts([delivery])[delivery])


def _logged(form: type[Form], webhook: Webhook, message: Delivery, log: Sequence[DeliveryAttempt]) -> Form:
    """Return a delivery with its attempts, as `form`. One that its webhook holds back has no next try."""
    fields = {name: getattr(message, name) for name in form.model_fields if name not in {"log", "waits_for"}}
    held = message.state == DeliveryState.PENDING and message.type != TEST_TYPE and not webhook.enabled
    if held:
        fields["next_try_at"] = None
    return form.model_validate(
        {
            **fields,
            "waits_for": HELD.format(reason=webhook.disabled_reason) if held else None,
            "log": [AttemptRead.model_validate(each) for each in log],
        }
    )
