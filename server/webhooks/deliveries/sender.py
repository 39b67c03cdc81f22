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
from collections import Counter
from collections.abc import Sequence
from typing import Final

import structlog

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.kit.jobs import Job
from server.kit.settings import WebhookSettings
from server.kit.telemetry import ControllerTelemetry
from server.webhooks.deliveries.http_client import DeliveryClient, DeliveryRequest, DeliveryResult
from server.webhooks.deliveries.repository import DeliveryQueue, DeliveryRepository, Outbox
from server.webhooks.refs import Subscription
from server.webhooks.repository import WebhookRepository

PER_WEBHOOK: Final = 4
"""Attempts for one webhook at once; one, while the newest failed."""
RUNS: Final = 50
"""Runs whose events become messages in one transaction."""
ROUNDS: Final = 20
"""Such transactions before messages that are due are sent."""
OVERLAP_SECONDS: Final = 120.0
"""Time by which a round looks back for changed runs: transactions commit later than they note the time."""
SURVEY_SECONDS: Final = 600.0
"""Interval between looks at all runs, changed or not; and between deletions of old rows."""
HELD_SECONDS: Final = 7 * 86400.0
"""For how long messages of a disabled webhook wait for it to be enabled."""
FORGET: Final = 5000
"""Deliveries deleted in one transaction."""
GRACE_SECONDS: Final = 3.0
"""Time for attempts under way when the sender stops; those that do not end in time are repeated."""
JITTER: Final = 0.2
"""Pauses are longer by up to this part, at random, so that receivers that were down are not hit by all at once."""

_log = structlog.get_logger(__name__)


def hold_seconds(settings: WebhookSettings) -> float:
    """Return the time after which an unfinished attempt counts as lost."""
    return 2 * settings.timeout_seconds + 30.0


def attempt(
    database: Database,
    client: DeliveryClient,
    settings: WebhookSettings,
    delivery_id: str,
    attempts: int,
    telemetry: ControllerTelemetry | None = None,
) -> DeliveryResult | None:
    """Try to deliver a message of which there have been `attempts`; None if another sender does."""
    with database.write() as session:
        request = DeliveryQueue(session).claim(delivery_id, attempts, hold_seconds(settings))
    if request is None:
        return None
    ids = {"webhook_id": request.webhook_id, "delivery_id": delivery_id}
    with structlog.contextvars.bound_contextvars(**ids, **({"run_id": request.run_id} if request.run_id else {})):
        result = client.send(request)
        outcome = _enter(database, settings, request, result)
        write = _log.info if result.succeeded else _log.warning
        write(f"webhook_{outcome}", attempt=request.attempt, status=result.status, error=result.error)
    if telemetry is not None:
        telemetry.attempts.labels(outcome).observe(result.seconds)
    return result


def _enter(database: Database, settings: WebhookSettings, request: DeliveryRequest, result: DeliveryResult) -> str:
    """Record what came of an attempt, and decide what is next; return it in a word."""
    with database.write() as session:
        queue = DeliveryQueue(session)
        if result.succeeded:
            queue.arrived(request, result)
            return "succeeded"
        tries = queue.tries(request)
        pauses = settings.retry_seconds
        if not request.test and not result.gone and tries <= len(pauses):
            pause = pauses[tries - 1] * (1 + JITTER * random.random())  # noqa: S311  spreads load, guards nothing
            queue.try_later(request, result, max(pause, min(result.retry_after or 0.0, max(pauses))))
            return "failed"
        reason = queue.give_up(request, result)
    if reason is not None:
        _log.warning("webhook_disabled", reason=reason, url=request.url)
    return "given_up"


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
        self._under_way: dict[str, str] = {}
        """Deliveries that this process sends now, with their webhooks."""
        self._threads: set[threading.Thread] = set()
        self.called = threading.Event()
        """Set when an attempt has ended: the next round begins at once."""
        self._looked: float | None = None
        """When runs were looked at last, on the database's clock."""

    def jobs(self) -> Sequence[Job]:
        """Return the jobs."""
        return (
            Job("webhook_survey", lambda: self.tell(survey=True), SURVEY_SECONDS),
            Job("webhook_messages", self.tell),
            Job("webhook_attempts", self.send),
            Job("old_deliveries", self.forget, SURVEY_SECONDS),
        )

    def close(self) -> None:
        """Wait for the attempts under way, but not for long."""
        deadline = time.monotonic() + GRACE_SECONDS
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def tell(self, *, survey: bool = False) -> int:
        """Make messages of the events of runs that have changed since the last look, or of all; return how many."""
        count = 0
        for _ in range(ROUNDS):
            with self._database.read() as session:
                webhooks = WebhookRepository(session)
                clock, subscriptions = webhooks.clock(), webhooks.subscriptions()
                pending = (
                    Outbox(session).pending(self._since(subscriptions, survey=survey), RUNS) if subscriptions else ()
                )
            if not pending:
                break
            with self._database.write() as session:
                subscriptions = WebhookRepository(session).subscriptions(lock=True)
                outbox = Outbox(session)
                for run in sorted(pending, key=lambda run: run.run_id) if subscriptions else ():
                    count += outbox.tell(run, subscriptions)
        else:
            return count  # there is more
        self._looked = clock
        return count

    def _since(self, subscriptions: Sequence[Subscription], *, survey: bool) -> float:
        """Return from which time on runs may have changed that are to be looked at."""
        since = min(subscription.since for subscription in subscriptions)
        return since if survey or self._looked is None else max(since, self._looked - OVERLAP_SECONDS)

    def send(self) -> int:
        """Begin what is due, as far as there are threads for it; return how many attempts began."""
        began = 0
        with self._database.read() as session:
            queue = DeliveryQueue(session)
            for webhook_id, failing in queue.busy().items():
                with self._lock:
                    free_here = (1 if failing else PER_WEBHOOK) - Counter(self._under_way.values())[webhook_id]
                    free = min(free_here, self._settings.concurrency - len(self._under_way))
                for delivery_id, attempts in queue.due(webhook_id, free) if free > 0 else ():
                    began += self._begin(webhook_id, delivery_id, attempts)
        return began

    def _begin(self, webhook_id: str, delivery_id: str, attempts: int) -> bool:
        with self._lock:
            if delivery_id in self._under_way:
                return False
            self._under_way[delivery_id] = webhook_id
        thread = threading.Thread(
            target=self._attempt, args=(delivery_id, attempts), name=f"webhook-{delivery_id}", daemon=True
        )
        self._threads.add(thread)
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
                self._threads.discard(threading.current_thread())
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
