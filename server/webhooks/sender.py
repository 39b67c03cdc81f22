"""The sender: jobs that create messages from events and deliver them.

Any number of senders may run: what becomes a message and who sends it is decided in the database by compare-and-set. A
crash loses nothing: messages are made from where the cursor stands, and an unfinished attempt counts as lost
after a while. So a receiver may get a message twice, always with the same id.

Each attempt has a thread of its own, of which there are at most `webhooks.concurrency`, and few for one webhook, so
that a slow receiver delays only its own messages.
"""

import random
import threading
import time
from collections.abc import Sequence
from typing import Final

import structlog

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.kit.jobs import Job
from server.kit.settings import WebhookSettings
from server.kit.telemetry import ControllerTelemetry
from server.runs.events.cursor import MARGIN_SECONDS, Look
from server.runs.events.repository import EventRepository
from server.webhooks.http_client import DeliveryClient, DeliveryRequest, DeliveryResult
from server.webhooks.repository import DeliveryQueue, DeliveryRepository, Outbox, WebhookRepository

PER_WEBHOOK: Final = 4
"""Attempts for one webhook at once; one, while the newest failed."""
RUNS: Final = 50
"""Runs whose events become messages in one transaction."""
ROUNDS: Final = 20
"""Such transactions before messages that are due are sent."""
SCAN_SECONDS: Final = 600.0
"""Interval between looks that reach back further, and between deletions of old rows."""
SCAN_MARGIN_SECONDS: Final = 3600.0
"""By so much: no transaction that was missed took that long."""
HELD_SECONDS: Final = 7 * 86400.0
"""For how long messages of a disabled webhook wait for it to be enabled."""
FORGET: Final = 5000
"""Deliveries deleted in one transaction."""
GRACE_SECONDS: Final = 3.0
"""Time for attempts under way when the sender stops; those that do not end in time are repeated."""
JITTER: Final = 0.2
"""Pauses are longer by up to this part, at random, so that receivers that were down are not hit by all at once."""

_log = structlog.get_logger(__name__)


def attempt(
    database: Database,
    client: DeliveryClient,
    settings: WebhookSettings,
    delivery_id: str,
    attempts: int,
    telemetry: ControllerTelemetry | None = None,
) -> DeliveryResult | None:
    """Try to deliver a message of which there have been `attempts`; None if another sender does."""
    hold_seconds = 2 * settings.timeout_seconds + 30.0  # then the attempt counts as lost
    with database.write() as session:
        request = DeliveryQueue(session).claim(delivery_id, attempts, hold_seconds)
    if request is None:
        return None
    ids = {"webhook_id": request.webhook_id, "delivery_id": delivery_id}
    with structlog.contextvars.bound_contextvars(**ids, **({"run_id": request.run_id} if request.run_id else {})):
        result = client.send(request)
        pause = _pause(settings.retry_seconds, request, result)
        with database.write() as session:
            reason = DeliveryQueue(session).enter(request, result, pause)
        if reason is not None:
            _log.warning("webhook_disabled", reason=reason, url=request.url)
        outcome = "succeeded" if result.succeeded else "given_up" if pause is None else "failed"
        write = _log.info if result.succeeded else _log.warning
        write(f"webhook_{outcome}", attempt=request.attempt, status=result.status, error=result.error)
    if telemetry is not None:
        telemetry.attempts.labels(outcome).observe(result.seconds)
    return result


def _pause(pauses: Sequence[float], request: DeliveryRequest, result: DeliveryResult) -> float | None:
    """Return the seconds after which a message that has not arrived is tried again; None: it is given up."""
    if request.test or result.gone or request.tries > len(pauses):
        return None
    pause = pauses[request.tries - 1] * (1 + JITTER * random.random())  # noqa: S311  spreads load, guards nothing
    return max(pause, min(result.retry_after or 0.0, max(pauses)))


class Sender:
    """Makes messages of new events and sends those that are due."""

    def __init__(
        self, database: Database, settings: WebhookSettings, telemetry: ControllerTelemetry | None = None
    ) -> None:
        self._database = database
        self._settings = settings
        self._telemetry = telemetry
        self._client = DeliveryClient(private=settings.private_addresses, timeout_seconds=settings.timeout_seconds)
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[str, threading.Thread]] = {}
        """Deliveries that this process sends now, each with its webhook and its thread."""
        self.called = threading.Event()
        """Set when an attempt has ended: the next round begins at once."""
        self._last: Look | None = None
        """The last look at events, all of which have messages."""

    def jobs(self) -> Sequence[Job]:
        """Return the jobs."""
        return (
            Job("webhook_survey", lambda: self.create_deliveries(SCAN_MARGIN_SECONDS), SCAN_SECONDS),
            Job("webhook_messages", self.create_deliveries),
            Job("webhook_attempts", self.send),
            Job("old_deliveries", self.forget, SCAN_SECONDS),
        )

    def close(self, seconds: float = GRACE_SECONDS) -> None:
        """Wait for the attempts under way, but not for long."""
        deadline = time.monotonic() + seconds
        for _, thread in list(self._under_way.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def create_deliveries(self, margin_seconds: float = MARGIN_SECONDS) -> int:
        """Make messages of the events that are new since the last look, at first of all; return how many."""
        with self._database.read() as session:
            webhooks, events, outbox = WebhookRepository(session).enabled(), EventRepository(session), Outbox(session)
            if not webhooks:
                self._last = None
                return 0
            since = min(webhook.since for webhook in webhooks)
            look = Look.first(events, since) if self._last is None else self._last.next(events, margin_seconds)
            positions = outbox.positions([head.run_id for head in look.new])
            pending = [(head.run_id, positions.get(head.run_id, 0), head.seq) for head in look.new]
            pending = [(run_id, after, head) for run_id, after, head in pending if after < head]
        count, complete = 0, len(pending) <= RUNS * ROUNDS
        for start in range(0, min(len(pending), RUNS * ROUNDS), RUNS):
            with self._database.write() as session:
                webhooks, outbox = WebhookRepository(session).enabled(lock=True), Outbox(session)
                for run_id, after, head in sorted(pending[start : start + RUNS]) if webhooks else ():
                    created, through = outbox.create_deliveries(run_id, after, head, webhooks)
                    count += created
                    complete &= through >= head
        if complete:
            self._last = look
        return count

    def send(self) -> int:
        """Begin what is due, as far as there are threads for it; return how many attempts began."""
        began, concurrency = 0, self._settings.concurrency
        with self._database.read() as session:
            queue = DeliveryQueue(session)
            for webhook_id, failing in queue.busy().items():
                with self._lock:
                    of_webhook = sum(webhook == webhook_id for webhook, _ in self._under_way.values())
                    free = min((1 if failing else PER_WEBHOOK) - of_webhook, concurrency - len(self._under_way))
                for delivery_id, attempts in queue.due(webhook_id, free) if free > 0 else ():
                    began += self._begin(webhook_id, delivery_id, attempts)
        return began

    def _begin(self, webhook_id: str, delivery_id: str, attempts: int) -> bool:
        thread = threading.Thread(
            target=self._attempt, args=(delivery_id, attempts), name=f"webhook-{delivery_id}", daemon=True
        )
        with self._lock:
            if delivery_id in self._under_way:
                return False
            self._under_way[delivery_id] = (webhook_id, thread)
            thread.start()
        return True

    def _attempt(self, delivery_id: str, attempts: int) -> None:
        try:
            attempt(self._database, self._client, self._settings, delivery_id, attempts, self._telemetry)
        except Unavailable as error:
            _log.warning("webhook_attempt_lost", delivery_id=delivery_id, error=str(error))
        finally:
            with self._lock:
                del self._under_way[delivery_id]
            self.called.set()

    def forget(self) -> int:
        """Give up what disabled webhooks have held for too long, and delete old deliveries; return how many."""
        with self._database.write() as session:
            deliveries = DeliveryRepository(session)
            given_up = deliveries.give_up_held(HELD_SECONDS, FORGET)
            deleted = deliveries.forget(self._settings.retention_seconds, FORGET)
        if given_up:
            _log.warning("held_deliveries_given_up", deliveries=given_up)
        return given_up + deleted
