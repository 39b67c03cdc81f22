"""Transactions in fewer messages: what is sent, and what is written, counted in PostgreSQL's own protocol."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.db.once import UNREAD
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.runs.events.repository import EventRepository
from server.runs.scheduling.demand import Offer
from server.simulators.repository import Assigned, Placement
from server.workers.models import Cordon
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import make_checkpoint, make_claim, make_run

postgresql = pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
SENT = "Query", "Sync"
"""The messages with which a client asks: with its text alone, or with parameters."""


@contextmanager
def messages(database: Database) -> Iterator[list[str]]:
    """Collect the text of each message to which PostgreSQL answers. The database has one connection."""
    driver = database.engine.raw_connection()
    connection = driver.driver_connection
    driver.close()  # back to the pool, where it stays
    found: list[str] = []
    with tempfile.NamedTemporaryFile("r") as trace:
        connection.pgconn.trace(trace.fileno())
        yield found
        connection.pgconn.untrace()
        parts: list[str] = []
        trace.seek(0)  # the driver has written with the same descriptor
        for entry in re.split(r"^(?=\d{4}-\d\d-\d\d )", trace.read(), flags=re.MULTILINE)[1:]:
            _time, sender, _length, kind, *rest = entry.rstrip().split("\t")
            if sender == "F":
                parts += rest
                if kind in SENT:
                    found.append(" ".join(parts))
                    parts = []


@pytest.fixture
def one(database_url: str) -> Iterator[Database]:
    """Return a database with one connection, which is open."""
    database = Database(database_url, pool_size=1)
    database.ping()
    yield database
    database.close()


def cordons(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Cordon.name).order_by(Cordon.name)))


def values(name: str) -> dict[str, object]:
    return {"name": name, "draining": False, "created_at": 0.0}


def test_statements_that_return_nothing_wait_for_the_commit_and_come_in_order(database: Database) -> None:
    odd = "100 % 'of' \\ \"it\"; COMMIT --"

    with database.write(gathers=True) as session:
        session.execute(insert(Cordon).values(**values(odd)))
        session.execute(update(Cordon).where(Cordon.name == odd).values(draining=True))
        session.execute(insert(Cordon).values(**values("another")))

    assert cordons(database) == sorted([odd, "another"])
    with database.read() as session:
        assert session.scalar(select(Cordon.draining).where(Cordon.name == odd)) is True


@postgresql
def test_they_and_the_commit_are_one_message(one: Database) -> None:
    with messages(one) as sent, one.write(gathers=True) as session:
        for name in "abc":
            session.execute(insert(Cordon).values(**values(name)))
        session.execute(insert(Cordon), [values("d"), values("e")])

    (message,) = sent
    assert (message.count("INSERT"), "BEGIN" in message, message.strip(' "').endswith("COMMIT")) == (5, True, True)
    assert cordons(one) == ["a", "b", "c", "d", "e"]


@postgresql
def test_they_go_with_the_next_statement_that_returns_something_and_before_it(one: Database) -> None:
    with messages(one) as sent, one.write(gathers=True) as session:
        session.execute(insert(Cordon).values(**values("a")))
        session.execute(select(func.pg_advisory_xact_lock(1)), execution_options={UNREAD: True})
        assert session.scalar(update(Cordon).values(draining=True).returning(Cordon.name)) == "a"
        session.execute(insert(Cordon).values(**values("b")))
        assert session.scalar(select(func.count()).select_from(Cordon)) == 2
        assert session.scalar(select(literal("100 % of it"))) == "100 % of it"

    assert [message.count("INSERT") for message in sent] == [1, 1, 0, 0], sent
    assert ("pg_advisory_xact_lock" in sent[0], "UPDATE" in sent[0], "COMMIT" in sent[3]) == (True, True, True)
    assert cordons(one) == ["a", "b"]


@postgresql
def test_a_transaction_without_a_statement_sends_nothing_and_can_be_left(one: Database) -> None:
    def fail() -> None:
        with one.write(gathers=True):
            raise RuntimeError

    with messages(one) as sent:
        with one.write(gathers=True):
            pass
        with pytest.raises(RuntimeError):
            fail()

    assert sent == []
    one.ping()


def test_a_transaction_that_fails_writes_none_of_them_and_the_next_one_neither(database: Database) -> None:
    def fail() -> None:
        with database.write(gathers=True) as session:
            session.execute(insert(Cordon).values(**values("lost")))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.write(gathers=True) as session:
        session.execute(insert(Cordon).values(**values("kept")))

    assert cordons(database) == ["kept"]


def test_one_that_is_refused_is_raised_and_undoes_the_whole_transaction(database: Database) -> None:
    with database.write() as session:
        session.execute(insert(Cordon).values(**values("there")))

    def collide() -> None:
        with database.write(gathers=True) as session:
            session.execute(insert(Cordon).values(**values("beside it")))
            session.execute(insert(Cordon).values(**values("there")))

    with pytest.raises(IntegrityError):
        collide()

    assert cordons(database) == ["there"]


@postgresql
def test_a_transaction_of_one_statement_is_one_message_whether_it_reads_or_writes(one: Database) -> None:
    with messages(one) as sent, one.write(once=True) as session:
        session.execute(insert(Cordon).values(**values("host")))
    with messages(one) as asked, one.read(once=True) as session:
        assert session.scalar(select(Cordon.name)) == "host"

    assert (len(sent), len(asked)) == (1, 1)


@postgresql
@pytest.mark.parametrize("recovers", [False, True])
@pytest.mark.parametrize("gpus", [0, 1])
def test_a_claim_keeps_the_lock_of_all_claims_for_two_messages(one: Database, recovers: bool, gpus: int) -> None:
    make_run(one)
    if recovers:
        first = AttemptLedger(one, make_claim(one))
        first.checkpoints.add(make_checkpoint(100))
        first.release("trainer_lost", "It crashed.")

    with messages(one) as sent:
        claim = RunQueue(one).claim("worker-1", 10, offer=Offer(gpus))

    assert claim is not None
    assert (claim.resume is not None) is recovers
    (locked,) = (place for place, message in enumerate(sent) if "pg_advisory_xact_lock" in message)
    assert len(sent[locked + 1 :]) == 2 + gpus, "one with GPUs looks with the lock whether another one is idle"
    assert len(sent) == 4 + 2 * gpus, sent


@postgresql
def test_a_claim_of_nothing_is_one_message(one: Database) -> None:
    with messages(one) as sent:
        assert RunQueue(one).claim("worker-1", 10) is None

    assert len(sent) == 1


@postgresql
def test_a_simulator_that_connects_locks_its_run_for_one_message(one: Database) -> None:
    run = make_run(one)
    ledger = AttemptLedger(one, make_claim(one))
    ledger.move(RunState.RUNNING)

    with messages(one) as sent:
        ledger.simulators.connected("session", number=0, collector=0)

    assert len(sent) == 2, sent
    assert "UPDATE runs" in sent[0]
    with one.read() as session:
        newest = EventRepository(session).page(run.id)[-1]
    assert newest.type == "simulator_connected"


@postgresql
@pytest.mark.parametrize("known", [False, True])
def test_a_simulator_that_joins_locks_its_run_for_four_messages(one: Database, known: bool) -> None:
    run = make_run(one)
    ledger = AttemptLedger(one, make_claim(one))
    ledger.listening([{"address": "127.0.0.1:7100", "index": 0}])
    if known:
        Placement(one).join(run.id, "session")

    with messages(one) as sent:
        answer = Placement(one).join(run.id, "session")

    assert isinstance(answer, Assigned)
    (locked,) = (place for place, message in enumerate(sent) if "FOR UPDATE" in message)
    assert len(sent[locked + 1 :]) == 4, sent
