"""Webhooks in the database, and their deliveries: making messages of events, claiming them, and their log."""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, delete, insert, select, text, update
from sqlalchemy.orm import defer, undefer

from server.kit.db.clock import now
from server.kit.db.ids import new_id
from server.kit.db.keyset import by_name, parts, select_page
from server.kit.db.repository import Repository, upsert
from server.kit.db.texts import storable
from server.kit.listing import ListQuery, Page
from server.runs.events.repository import UNTRACKED
from server.runs.models import Event, Run
from server.webhooks.errors import DeliveryNotFound, WebhookNotFound
from server.webhooks.http_client import DeliveryRequest, DeliveryResult
from server.webhooks.messages import TEST_TYPE, event_message, test_message
from server.webhooks.models import (
    PENDING_SQL,
    Delivery,
    DeliveryAttempt,
    DeliveryState,
    DisabledReason,
    Webhook,
    WebhookCursor,
)

EVENTS: Final = 500
"""Events of one run that become messages in one transaction."""


class WebhookRepository(Repository):
    """Webhooks."""

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

    def enabled(self, *, lock: bool = False) -> Sequence[Webhook]:
        """Return the enabled webhooks; with `lock` none of them is deleted before the commit."""
        query = select(Webhook).where(Webhook.enabled).order_by(Webhook.id)
        return self._session.scalars(query.with_for_update(read=True, key_share=True) if lock else query).all()


class Outbox(Repository):
    """Turns events into deliveries, each once, however many do so at the same time.

    Events are their own outbox. The cursor of a run moves by compare-and-set in the transaction that inserts the
    deliveries: the second sender changes nothing.
    """

    def positions(self, run_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the number of each run's newest event that has become messages; runs without one are left out."""
        query = select(WebhookCursor.run_id, WebhookCursor.seq)
        rows = (self._session.execute(query.where(WebhookCursor.run_id.in_(part))) for part in parts(run_ids))
        return {run_id: seq for part in rows for run_id, seq in part}

    def create_deliveries(self, run_id: str, after: int, head: int, webhooks: Sequence[Webhook]) -> tuple[int, int]:
        """Make the deliveries of a run's events behind its position, up to its newest one; return how many there are,
        and the new position, which stays if another sender was first.
        """
        since = min(webhook.since for webhook in webhooks)
        numbers = (Event.run_id == run_id, Event.seq > after, Event.seq <= head, Event.at >= since)
        events = self._session.scalars(select(Event).where(*numbers).order_by(Event.seq).limit(EVENTS)).all()
        through = events[-1].seq if len(events) == EVENTS else head
        if not self._advance(run_id, after, through):
            return 0, after
        run = self._session.scalars(select(Run).where(Run.id == run_id).options(defer(Run.config))).one_or_none()
        rows = [
            _row(run, event, webhook)
            for event in events
            for webhook in webhooks
            if run is not None and webhook.covers(run.project, run.id, run.tags, event.type, event.at)
        ]
        if rows:
            self._session.execute(insert(Delivery), rows)
            ids = [row["id"] for row in rows]
            self._session.execute(  # the database's clock, for all of them
                update(Delivery).where(Delivery.id.in_(ids)).values(created_at=now(), next_try_at=now()),
                execution_options=UNTRACKED,
            )
        return len(rows), through

    def _advance(self, run_id: str, after: int, through: int) -> bool:
        """Move the cursor of a run. False if another sender did."""
        if after:
            moved = update(WebhookCursor).where(WebhookCursor.run_id == run_id, WebhookCursor.seq == after)
            moved_to = moved.values(seq=through).returning(WebhookCursor.seq)
            return self._session.scalar(moved_to, execution_options=UNTRACKED) is not None
        first = upsert(self._session, WebhookCursor).values(run_id=run_id, seq=through).on_conflict_do_nothing()
        return self._session.scalar(first.returning(WebhookCursor.seq)) is not None


class DeliveryQueue(Repository):
    """Hands messages to senders, and stores the results.

    A message belongs to the sender that raises its number of attempts. If that sender dies, it is due again at
    `next_try_at`; what a sender that was thought dead reports late is entered in the log and changes nothing else.
    """

    def due(self, webhook_id: str, limit: int) -> Sequence[tuple[str, int]]:
        """Return id and attempts of a webhook's messages that are to be sent now, the longest due first."""
        query = (
            select(Delivery.id, Delivery.attempts)
            .where(text(PENDING_SQL), Delivery.webhook_id == webhook_id, Delivery.next_try_at <= now())
            .order_by(Delivery.next_try_at)
            .limit(limit)
        )
        return [(row.id, row.attempts) for row in self._session.execute(query)]

    def busy(self) -> Mapping[str, bool]:
        """Return the enabled webhooks that have messages due now; True where its newest attempt failed."""
        has_due = (
            select(Delivery.id)
            .where(text(PENDING_SQL), Delivery.webhook_id == Webhook.id, Delivery.next_try_at <= now())
            .exists()
        )
        query = select(Webhook.id, Webhook.failing_since).where(Webhook.enabled, has_due).order_by(Webhook.id)
        return {row.id: row.failing_since is not None for row in self._session.execute(query)}

    def claim(self, delivery_id: str, attempts: int, hold_seconds: float) -> DeliveryRequest | None:
        """Begin the next attempt, unless another sender has; it counts as lost after `hold_seconds`."""
        claimed = (
            update(Delivery)
            .where(Delivery.id == delivery_id, Delivery.attempts == attempts, Delivery.state == DeliveryState.PENDING)
            .values(attempts=attempts + 1, next_try_at=now() + hold_seconds)
            .returning(Delivery.webhook_id, Delivery.payload, Delivery.type, Delivery.run_id, Delivery.attempts_before)
        )
        row = self._session.execute(claimed, execution_options=UNTRACKED).one_or_none()
        if row is None:
            return None
        webhook = self._session.get_one(Webhook, row.webhook_id)
        keys = [webhook.secret]
        if webhook.former_secret is not None and (webhook.former_until or 0.0) > self.clock():
            keys.append(webhook.former_secret)
        return DeliveryRequest(
            delivery_id=delivery_id,
            attempt=attempts + 1,
            tries=attempts + 1 - row.attempts_before,
            webhook_id=webhook.id,
            url=webhook.url,
            keys=keys,
            body=row.payload,
            run_id=row.run_id,
            test=row.type == TEST_TYPE,
        )

    def enter(self, request: DeliveryRequest, result: DeliveryResult, pause: float | None) -> DisabledReason | None:
        """Enter an attempt. One that failed is followed by another one after a pause, or, without it, was the last one;
        return why the webhook is disabled, if it is thereby.

        It is when its receiver is gone, or when nothing has come through since the message was made. The webhook is
        locked first, as by those who delete it.
        """
        webhook = self._locked(select(Webhook).where(Webhook.id == request.webhook_id), key_share=True)
        message = self._locked(select(Delivery).where(Delivery.id == request.delivery_id))
        if webhook is None or message is None:
            return None  # deleted meanwhile
        clock = self.clock()
        self._session.add(
            DeliveryAttempt(
                delivery_id=request.delivery_id,
                number=request.attempt,
                at=clock,
                seconds=result.seconds,
                status=result.status,
                error=None if result.error is None else storable(result.error),
                response=None if result.response is None else storable(result.response),
            )
        )
        if result.succeeded:
            webhook.failing_since, webhook.last_success_at = None, clock
        else:
            webhook.failing_since = webhook.failing_since or clock
        if message.attempts == request.attempt and message.state == DeliveryState.PENDING:
            if result.succeeded or pause is None:
                message.state = DeliveryState.SUCCEEDED if result.succeeded else DeliveryState.FAILED
                message.next_try_at, message.ended_at = None, clock
            else:
                message.next_try_at = clock + pause
        if result.succeeded or pause is not None or request.test or not webhook.enabled:
            return None
        if not result.gone and (webhook.last_success_at or 0.0) >= message.created_at:
            return None
        reason = DisabledReason.GONE if result.gone else DisabledReason.FAILING
        webhook.enabled, webhook.disabled_reason, webhook.updated_at = False, reason, clock
        return reason


class DeliveryRepository(Repository):
    """The log of deliveries, and what people ask of it."""

    COLUMNS = by_name(Delivery.state, Delivery.type, Delivery.run_id, Delivery.attempts, Delivery.created_at)

    def get(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Return a delivery of a webhook, with its payload. Raises DeliveryNotFound."""
        delivery = self._session.get(Delivery, delivery_id, populate_existing=True, options=[undefer(Delivery.payload)])
        if delivery is None or delivery.webhook_id != webhook_id:
            raise DeliveryNotFound(webhook_id, delivery_id)
        return delivery

    def list(self, webhook_id: str, query: ListQuery) -> Page[Delivery]:
        """Return a page of a webhook's deliveries, without their payloads."""
        of_webhook: ColumnElement[bool] = Delivery.webhook_id == webhook_id
        statement = select(Delivery).where(of_webhook).options(defer(Delivery.payload, raiseload=True))
        return select_page(self._session, statement, query, self.COLUMNS, Delivery.id)

    def attempts(self, delivery_ids: Sequence[str]) -> Mapping[str, Sequence[DeliveryAttempt]]:
        """Return the attempts of these deliveries, in order."""
        query = select(DeliveryAttempt).where(DeliveryAttempt.delivery_id.in_(delivery_ids))
        attempts: dict[str, list[DeliveryAttempt]] = {delivery_id: [] for delivery_id in delivery_ids}
        for attempt in self._session.scalars(query.order_by(DeliveryAttempt.delivery_id, DeliveryAttempt.number)):
            attempts[attempt.delivery_id].append(attempt)
        return attempts

    def insert_test(self, webhook_id: str, hold_seconds: float) -> Delivery:
        """Insert a test message, which is not due for `hold_seconds`: the request that asked for it sends it."""
        clock = self.clock()
        message = Delivery(
            id=new_id("msg"),
            webhook_id=webhook_id,
            type=TEST_TYPE,
            payload=test_message(webhook_id, clock),
            state=DeliveryState.PENDING,
            attempts=0,
            attempts_before=0,
            next_try_at=clock + hold_seconds,
            created_at=clock,
        )
        self._session.add(message)
        self._session.flush()
        return message

    def redeliver(self, message: Delivery) -> None:
        """Make a message due now, with any former result."""
        statement = update(Delivery).where(Delivery.id == message.id)
        self._session.execute(
            statement.values(
                state=DeliveryState.PENDING, attempts_before=Delivery.attempts, next_try_at=now(), ended_at=None
            ),
            execution_options=UNTRACKED,
        )

    def give_up_held(self, older_seconds: float, limit: int) -> int:
        """Give up at most `limit` older messages whose webhook is disabled; return how many. Their log says why."""
        older = (
            select(Delivery.id)
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .where(text(PENDING_SQL), ~Webhook.enabled)
            .where(Delivery.created_at < now() - older_seconds)
            .limit(limit)
        )
        # A sender owns a message by raising its number of attempts; so does this. One that was sent meanwhile is left.
        ended = {"state": DeliveryState.FAILED, "next_try_at": None, "ended_at": now()}
        taken = update(Delivery).where(Delivery.id.in_(older), text(PENDING_SQL))
        taken = taken.values(attempts=Delivery.attempts + 1, **ended)
        given_up = self._session.execute(
            taken.returning(Delivery.id, Delivery.attempts, Delivery.ended_at), execution_options=UNTRACKED
        ).all()
        error = f"not sent: the webhook was disabled for {older_seconds / 86400:g} days after the event"
        entries = [
            {"delivery_id": row.id, "number": row.attempts, "at": row.ended_at, "seconds": 0.0, "error": error}
            for row in given_up
        ]
        if entries:
            self._session.execute(insert(DeliveryAttempt), entries)
        return len(given_up)

    def forget(self, older_seconds: float, limit: int) -> int:
        """Delete at most `limit` older deliveries, and cursors of as many deleted runs; return how many deliveries."""
        old = select(Delivery.id).where(Delivery.created_at < now() - older_seconds).limit(limit)
        orphans = select(WebhookCursor.run_id).where(~select(Run.id).where(Run.id == WebhookCursor.run_id).exists())
        self._session.execute(
            delete(WebhookCursor).where(WebhookCursor.run_id.in_(orphans.limit(limit))), execution_options=UNTRACKED
        )
        deletion = delete(Delivery).where(Delivery.id.in_(old)).returning(Delivery.id)
        return len(self._session.scalars(deletion, execution_options=UNTRACKED).all())


def _row(run: Run, event: Event, webhook: Webhook) -> dict[str, object]:
    of_run = {
        "id": run.id,
        "name": run.name,
        "kind": run.kind,
        "tags": run.tags,
        "state": run.state,
        "stop_reason": run.stop_reason,
        "step": run.step,
    }
    fields = ("seq", "at", "attempt", "type", "level", "message", "data")
    return {
        "id": new_id("msg"),
        "webhook_id": webhook.id,
        "run_id": run.id,
        "seq": event.seq,
        "type": event.type,
        "payload": event_message(of_run, {field: getattr(event, field) for field in fields}),
        "state": DeliveryState.PENDING,
        "attempts": 0,
        "attempts_before": 0,
        "next_try_at": None,
        "created_at": 0.0,
    }
