"""From events to messages that have arrived."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.jobs import JobLoop
from server.kit.listing import ListQuery, Order
from server.kit.settings import WebhookSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.runs.events.cursor import MARGIN_SECONDS
from server.runs.events.repository import Note, record
from server.runs.models import Run
from server.webhooks.models import Delivery, Webhook
from server.webhooks.repository import DeliveryQueue, DeliveryRepository, Outbox, WebhookRepository
from server.webhooks.sender import Sender
from server.webhooks.service import WebhookCreate, WebhookService, WebhookUpdate
from tests.factories import make_run
from tests.server.webhooks.receiver import Receiver, receiving
from tests.waiting import eventually, never


def settings(**changes: Any) -> WebhookSettings:
    return WebhookSettings(**{"private_addresses": True, "timeout_seconds": 5, "interval_seconds": 0.02, **changes})


def subscribe(database: Database, url: str, events: tuple[str, ...] = ("*",), **filters: Any) -> Webhook:
    with database.write() as session:
        return WebhookService(session, private=True).create(WebhookCreate(url=url, events=list(events), **filters))


def change(database: Database, webhook: Webhook, **values: Any) -> Webhook:
    with database.write() as session:
        return WebhookService(session, private=True).change(webhook.id, WebhookUpdate(**values))


def clock(database: Database) -> float:
    with database.read() as session:
        return WebhookRepository(session).clock()


def happen(database: Database, run_id: str, *types: str) -> None:
    for each in types:
        with database.write() as session:
            record(session, run_id, Note(each, f"{each} happened", data={"n": 1}))


def log_of(database: Database, webhook: Webhook) -> list[Delivery]:
    """Return the webhook's deliveries, oldest first."""
    with database.read() as session:
        query = ListQuery(Order("created_at", descending=False), limit=1000)
        return list(DeliveryRepository(session).list(webhook.id, query).items)


def state_of(database: Database, webhook: Webhook) -> Webhook:
    with database.read() as session:
        return WebhookRepository(session).get(webhook.id)


def pass_time(database: Database, seconds: float) -> None:
    """Let every message that waits be due so much sooner."""
    with database.write() as session:
        session.execute(update(Delivery).values(next_try_at=Delivery.next_try_at - seconds))


def running(sender: Sender) -> Callable[[threading.Event], None]:
    return JobLoop(sender.jobs(), settings().interval_seconds, called=sender.called).run


def settle(sender: Sender, rounds: int = 400) -> None:
    """Send until nothing is due and nothing is under way."""
    for _ in range(rounds):
        began = sender.send()
        sender.close(60)
        if not began:
            return
    raise AssertionError("there is always something due")


def test_events_arrive_signed_once_each_and_in_the_apis_form(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url)
    run = make_run(database, name="nightly", tags=["ci"])
    happen(database, run.id, "checkpoint_saved")
    sender = Sender(database, settings())

    made = sender.create_deliveries()
    settle(sender)

    messages = [each.verified(webhook.secret) for each in receiver.received]
    saved = next(each for each in messages if each["type"] == "checkpoint_saved")
    assert made == len(messages) == len(set(receiver.ids()))
    assert {"type", "timestamp", "data"} == set(saved)
    assert saved["data"]["run"] | {"id": run.id, "name": "nightly", "tags": ["ci"]} == saved["data"]["run"]
    event = saved["data"]["event"]
    assert (event["seq"], event["message"], event["data"]) == (made, "checkpoint_saved happened", {"n": 1})
    assert event["at"] == saved["timestamp"]
    assert sender.create_deliveries() == 0
    assert {each.state for each in log_of(database, webhook)} == {"succeeded"}


@pytest.mark.parametrize(
    ("events", "filters", "expected"),
    [
        (("checkpoint_*",), {}, ["checkpoint_saved", "checkpoint_saved"]),
        (("simulator_left", "checkpoint_saved"), {"tag": "ci"}, ["checkpoint_saved", "simulator_left"]),
        (("*_left",), {"run": "other"}, []),
        (("checkpoint",), {}, []),
    ],
)
def test_a_webhook_hears_what_it_asked_for(
    database: Database, receiver: Receiver, events: tuple[str, ...], filters: dict[str, str], expected: list[str]
) -> None:
    ours, other = make_run(database, name="ours", tags=["ci"]), make_run(database, name="other")
    subscribe(database, receiver.url, events, **filters)
    happen(database, ours.id, "checkpoint_saved", "simulator_left")
    happen(database, other.id, "checkpoint_saved")
    sender = Sender(database, settings())

    sender.create_deliveries()
    settle(sender)

    assert sorted(each.headers["webhook-id"] and _type(each.body) for each in receiver.received) == expected


def _type(body: bytes) -> str:
    return body.decode().split('"')[3]


def test_what_happened_before_a_webhook_was_made_is_not_told(database: Database, receiver: Receiver) -> None:
    run = make_run(database)
    happen(database, run.id, "before")
    time.sleep(0.01)  # allow: sleep, because SQLite's clock has milliseconds
    subscribe(database, receiver.url)
    happen(database, run.id, "after")
    sender = Sender(database, settings())

    sender.create_deliveries()
    settle(sender)

    assert [_type(each.body) for each in receiver.received] == ["after"]


def test_the_state_that_a_run_moved_to_is_told(database: Database, receiver: Receiver) -> None:
    subscribe(database, receiver.url, ("run_*",))
    run = make_run(database)
    claim = RunQueue(database).claim("host/1/1", 60, hint=run.id)
    assert claim is not None
    AttemptLedger(database, claim).move(RunState.CANCELLED)
    sender = Sender(database, settings())

    sender.create_deliveries()
    settle(sender)

    last = max((each.verified(state_of_secret(database)) for each in receiver.received), key=_seq)
    assert last["data"]["run"]["state"] == last["data"]["event"]["data"]["to"] == "CANCELLED"


def state_of_secret(database: Database) -> str:
    with database.read() as session:
        (webhook,) = session.scalars(select(Webhook))
        return webhook.secret


def _seq(message: dict[str, Any]) -> int:
    return int(message["data"]["event"]["seq"])


def test_a_failure_is_tried_again_later_with_the_same_id_and_body(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, "hello")
    sender = Sender(database, settings(retry_seconds=(600, 600)))
    receiver.status = 500
    sender.create_deliveries()
    settle(sender)
    (waiting,) = log_of(database, webhook)
    failing = state_of(database, webhook).failing_since
    receiver.status = 200

    pass_time(database, 1000)
    settle(sender)

    first, second = receiver.received
    assert (waiting.state, waiting.attempts) == ("pending", 1)
    assert failing is not None
    assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
    (done,) = log_of(database, webhook)
    assert (done.state, done.attempts, done.next_try_at) == ("succeeded", 2, None)
    assert state_of(database, webhook).failing_since is None
    with database.read() as session:
        attempts = DeliveryRepository(session).attempts([done.id])[done.id]
    assert [(each.number, each.status) for each in attempts] == [(1, 500), (2, 200)]
    assert (attempts[0].error, attempts[0].response) == ("the receiver answered 500", "thank you")


def test_the_pauses_grow_as_the_settings_say_with_jitter(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, *["hello"] * 8)
    sender = Sender(database, settings(retry_seconds=(100, 1000)))
    receiver.status = 503
    sender.create_deliveries()

    before = time.time()
    settle(sender)

    pauses = [(each.next_try_at or 0.0) - before for each in log_of(database, webhook)]
    assert all(100 <= pause <= 100 * 1.2 + 5 for pause in pauses)
    assert len({round(pause, 2) for pause in pauses}) > 4  # spread


def test_a_receiver_may_ask_for_more_time(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, "hello")
    sender = Sender(database, settings(retry_seconds=(1, 5000)))
    receiver.status, receiver.headers = 429, {"Retry-After": "900"}
    sender.create_deliveries()

    settle(sender)

    (waiting,) = log_of(database, webhook)
    assert 850 < (waiting.next_try_at or 0.0) - time.time() < 950


def test_after_its_last_retry_a_message_is_given_up_and_a_dead_receivers_webhook_disabled(
    database: Database, receiver: Receiver
) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    run = make_run(database)
    happen(database, run.id, "hello")
    sender = Sender(database, settings(retry_seconds=(600, 600)))
    receiver.status = 500
    sender.create_deliveries()
    for _ in range(3):
        settle(sender)
        pass_time(database, 1000)

    (given_up,) = log_of(database, webhook)
    found = state_of(database, webhook)
    assert (given_up.state, given_up.attempts, given_up.next_try_at) == ("failed", 3, None)
    assert (found.enabled, found.disabled_reason) == (False, "failing")
    happen(database, run.id, "hello")
    assert sender.create_deliveries() == 0


def test_one_message_that_never_arrives_disables_nothing_while_others_do(
    database: Database, receiver: Receiver
) -> None:
    webhook = subscribe(database, receiver.url, ("*",))
    run = make_run(database)
    sender = Sender(database, settings(retry_seconds=(600,)))
    receiver.status = 500
    happen(database, run.id, "poison")
    sender.create_deliveries()
    settle(sender)
    receiver.status = 200
    happen(database, run.id, "fine")
    sender.create_deliveries()
    settle(sender)
    receiver.status = 500

    pass_time(database, 1000)
    settle(sender)

    assert "failed" in {each.state for each in log_of(database, webhook)}
    assert state_of(database, webhook).enabled


def test_a_receiver_that_is_gone_gets_nothing_more(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, "hello")
    sender = Sender(database, settings())
    receiver.status = 410
    sender.create_deliveries()

    settle(sender)

    found = state_of(database, webhook)
    assert (found.enabled, found.disabled_reason, len(receiver.received)) == (False, "gone", 1)
    assert [each.state for each in log_of(database, webhook)] == ["failed"]


def test_what_was_waiting_goes_on_when_a_webhook_is_enabled_again(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url, ("waiting", "missed", "new"))
    run = make_run(database)
    sender = Sender(database, settings())
    happen(database, run.id, "waiting")
    sender.create_deliveries()
    change(database, webhook, enabled=False)
    settle(sender)
    happen(database, run.id, "missed")
    sender.create_deliveries()
    assert receiver.received == []
    missed_at = clock(database)
    eventually(lambda: clock(database) > missed_at, "the clock goes on; it counts whole milliseconds")

    change(database, webhook, enabled=True)
    happen(database, run.id, "new")
    sender.create_deliveries()
    settle(sender)

    assert sorted(_type(each.body) for each in receiver.received) == ["new", "waiting"]


def test_a_message_is_sent_again_on_request_with_its_id_and_all_its_retries(
    database: Database, receiver: Receiver
) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, "hello")
    sender = Sender(database, settings(retry_seconds=(600,)))
    sender.create_deliveries()
    settle(sender)
    (sent,) = log_of(database, webhook)
    receiver.status = 500

    with database.write() as session:
        WebhookService(session, private=True).redeliver(webhook.id, sent.id)
    settle(sender)

    (again,) = log_of(database, webhook)
    assert receiver.ids() == [sent.id, sent.id]
    assert (again.state, again.attempts) == ("pending", 2)  # the retry counts again: it is tried once more


@pytest.mark.long
def test_two_senders_make_and_send_each_message_once(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url)
    runs = [make_run(database).id for _ in range(5)]
    stop = threading.Event()
    senders = [threading.Thread(target=running(Sender(database, settings())), args=(stop,)) for _ in range(2)]
    for each in senders:
        each.start()
    for run in runs:
        happen(database, run, *(f"step_{n}" for n in range(6)))

    with database.read() as session:
        total = sum(session.get_one(Run, run).event_seq for run in runs)
    receiver.wait_for(total)
    never(lambda: len(receiver.received) > total, "a message is sent twice", 0.3)
    stop.set()
    for each in senders:
        each.join()

    assert len(receiver.received) == len(set(receiver.ids())) == total
    assert len(log_of(database, webhook)) == total


def test_events_that_are_appended_while_they_are_told_are_neither_lost_nor_doubled(
    database: Database, receiver: Receiver
) -> None:
    webhook = subscribe(database, receiver.url, ("step_*",))
    run = make_run(database).id
    sender = Sender(database, settings())

    def append(writer: int) -> None:
        happen(database, run, *(f"step_{writer}_{n}" for n in range(15)))

    writers = [threading.Thread(target=append, args=(writer,)) for writer in range(4)]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        sender.create_deliveries()
    sender.create_deliveries()

    told = sorted(each.type for each in log_of(database, webhook))
    assert told == sorted(f"step_{writer}_{n}" for writer in range(4) for n in range(15))


@pytest.mark.parametrize("first", [True, False])
def test_an_event_that_is_committed_late_becomes_a_message(database: Database, receiver: Receiver, first: bool) -> None:
    """Its run notes a time before the last look, by almost as much as a transaction may take."""
    webhook = subscribe(database, receiver.url, ("late", "early"))
    with database.write() as session:
        session.execute(update(Webhook).values(since=Webhook.since - 1000))
    run = make_run(database)
    sender = Sender(database, settings())
    happen(database, run.id, *([] if first else ["early"]))
    sender.create_deliveries()

    with database.write() as session:
        record(session, run.id, Note("late", "It happened."))
        session.execute(update(Run).values(stored_updated_at=Run.stored_updated_at - MARGIN_SECONDS + 5))
    sender.create_deliveries()
    sender.create_deliveries()

    assert sorted(message.type for message in log_of(database, webhook)) == ["late"] if first else ["early", "late"]


def test_a_sender_that_died_after_telling_or_claiming_leaves_the_message_to_the_next(
    database: Database, receiver: Receiver
) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, "hello")
    dead = Sender(database, settings(timeout_seconds=0.05))
    dead.create_deliveries()
    with database.write() as session:
        queue = DeliveryQueue(session)
        ((message, attempts),) = queue.due(webhook.id, 10)
        assert queue.claim(message, attempts, hold_seconds=600) is not None  # and then nothing more

    successor = Sender(database, settings())
    settle(successor)
    early = list(receiver.ids())
    pass_time(database, 601)
    settle(successor)

    assert (early, receiver.ids()) == ([], [message])
    (delivered,) = log_of(database, webhook)
    assert (delivered.state, delivered.attempts) == ("succeeded", 2)


def test_a_cursor_moves_once_whoever_tells(database: Database, receiver: Receiver) -> None:
    subscribe(database, receiver.url)
    run = make_run(database)
    with database.write() as session:
        webhooks, outbox = WebhookRepository(session).enabled(lock=True), Outbox(session)
        head = session.get_one(Run, run.id).event_seq
        first = outbox.create_deliveries(run.id, 0, head, webhooks)
        second = outbox.create_deliveries(run.id, 0, head, webhooks)
        late = outbox.create_deliveries(run.id, 99, 100, webhooks)

    assert first == (head, head)
    assert (second, late) == ((0, 0), (0, 99))


def test_a_slow_receiver_holds_up_nobody_else(database: Database, receiver: Receiver) -> None:
    over = threading.Event()
    with receiving() as slow:
        slow.before = lambda: over.wait(120) and None
        subscribe(database, slow.url)
        quick = subscribe(database, receiver.url, ("hello",))
        run = make_run(database).id
        happen(database, run, *["hello"] * 20)
        stop = threading.Event()
        sender = Sender(database, settings(concurrency=8, timeout_seconds=60))
        thread = threading.Thread(target=running(sender), args=(stop,))
        thread.start()
        try:
            receiver.wait_for(20)  # the slow one has answered nothing yet
            slow.wait_for(1)
        finally:
            over.set()
            stop.set()
            thread.join()
            sender.close()

    assert [each.state for each in log_of(database, quick)] == ["succeeded"] * 20


def test_old_deliveries_are_forgotten(database: Database, receiver: Receiver) -> None:
    webhook = subscribe(database, receiver.url, ("hello",))
    happen(database, make_run(database).id, "hello")
    sender = Sender(database, settings())
    sender.create_deliveries()
    settle(sender)

    with database.write() as session:
        kept = DeliveryRepository(session).forget(3600, 100)
        gone = DeliveryRepository(session).forget(0.0, 100)

    assert (kept, gone, log_of(database, webhook)) == (0, 1, [])


def test_without_webhooks_nothing_is_written(database: Database) -> None:
    run = make_run(database)
    happen(database, run.id, "hello")

    assert Sender(database, settings()).create_deliveries() == 0
    with database.read() as session:
        assert Outbox(session).positions([run.id]) == {}  # no cursor was made


def test_what_a_disabled_webhook_holds_back_is_given_up_after_a_week_and_its_log_says_why(
    database: Database, receiver: Receiver
) -> None:
    webhook = subscribe(database, receiver.url, ("saved",))
    other = subscribe(database, receiver.url, ("saved",))
    happen(database, make_run(database).id, "saved")
    Sender(database, settings()).create_deliveries()
    change(database, webhook, enabled=False)

    def age(days: float) -> None:
        with database.write() as session:
            session.execute(update(Delivery).values(created_at=Delivery.created_at - days * 86400))
        Sender(database, settings(retention_seconds=30 * 86400.0)).forget()

    age(6.9)
    (waiting,) = log_of(database, webhook)
    age(0.2)
    (over,) = log_of(database, webhook)

    assert waiting.state == "pending"
    assert (over.state, over.attempts, over.next_try_at) == ("failed", 1, None)
    with database.read() as session:
        (entry,) = DeliveryRepository(session).attempts([over.id])[over.id]
    assert entry.error == "not sent: the webhook was disabled for 7 days after the event"
    assert log_of(database, other)[0].state == "pending", "an enabled webhook's own retries decide"
