"""The cost of heartbeats and claims in PostgreSQL, read from its write-ahead log and counted at the connection.

The log is that of the whole server, on which other tests run: only records of this database's tables count, and the
commits of their transactions. A page's first change after a checkpoint logs the whole page; those images
(`fpi_length`) are left out. They depend on how often the server makes checkpoints, and not on what a beat writes. A
checkpoint (each DROP DATABASE makes one) would also remove the log's beginning: a replication slot keeps it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import event, text

from server.app.models import Base
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.metrics.points import CHUNK_POINTS, Points
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import make_checkpoint, make_claim, make_ledger, make_run
from tests.server.runs.test_diagnosis import SPENT

pytestmark = pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)

RECORDS = """
WITH records AS (
    SELECT xid, resource_manager AS manager, record_type, record_length - fpi_length AS bytes, block_ref
    FROM pg_get_wal_records_info(CAST(:begin AS pg_lsn), pg_current_wal_flush_lsn())
), own AS (
    SELECT * FROM records WHERE block_ref ~ ('rel [0-9]+/' || (
        SELECT oid FROM pg_database WHERE datname = current_database()
    ) || '/(' || (
        SELECT string_agg(CAST(pg_relation_filenode(oid) AS text), '|') FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')
    ) || ') ')
)
SELECT manager, record_type, bytes FROM own
UNION ALL
SELECT manager, record_type, bytes FROM records
WHERE manager = 'Transaction' AND xid IN (SELECT xid FROM own)
"""


@dataclass
class Cost:
    """The cost of what was done meanwhile."""

    transactions: int = 0
    """Also those that only read."""
    statements: list[str] = field(default_factory=list)
    """Without the BEGIN of each transaction."""
    pings: int = 0
    log_bytes: int = 0
    records: Counter[str] = field(default_factory=Counter)
    """Of the write-ahead log, by type."""


@contextmanager
def measured(database: Database) -> Iterator[Cost]:
    """Measure the transactions of a database's connections, and the log of its tables."""
    cost = Cost()
    engine = database.engine
    ping = engine.dialect.do_ping

    def begun(_connection: object) -> None:
        cost.transactions += 1

    def executed(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if not statement.startswith("BEGIN"):
            cost.statements.append(statement)

    def pinged(connection: Any) -> bool:
        cost.pings += 1
        return ping(connection)

    with database.write() as session:
        session.execute(text("CREATE EXTENSION IF NOT EXISTS pg_walinspect"))
    keeper = psycopg.connect(database.url.set(drivername="postgresql").render_as_string(False), autocommit=True)
    keeper.execute("SELECT pg_create_physical_replication_slot('cost_' || pg_backend_pid(), true, true)")
    with database.write() as session:
        begin = session.scalar(text("SELECT CAST(pg_current_wal_insert_lsn() AS text)"))
    event.listen(engine, "begin", begun)
    event.listen(engine, "before_cursor_execute", executed)
    engine.dialect.do_ping = pinged  # type: ignore[method-assign]  # to count it
    try:
        yield cost
    finally:
        event.remove(engine, "begin", begun)
        event.remove(engine, "before_cursor_execute", executed)
        engine.dialect.do_ping = ping  # type: ignore[method-assign]
    with database.write() as session:  # the log is read as far as it is on the disk: up to this commit
        session.execute(text("SET LOCAL synchronous_commit = on"))
        session.execute(text("SELECT pg_logical_emit_message(true, 'ludus', 'end')"))
    with database.read() as session:
        for manager, record_type, length in session.execute(text(RECORDS), {"begin": begin}):
            cost.log_bytes += length
            cost.records[f"{manager} {record_type}"] += 1
    keeper.close()  # and its slot is gone


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url, pool_size=1)
    yield database
    database.close()


def test_a_beat_is_one_statement_that_changes_one_row_in_place_and_logs_at_most_300_bytes(database: Database) -> None:
    """In place, in the best of five passes: a long transaction elsewhere keeps old versions, which fill the pages."""
    ledgers = [make_ledger(database) for _ in range(10)]
    rounds = 90
    beats = rounds * len(ledgers)
    numbers = count(1)
    in_place = list[int]()
    logged = list[int]()

    for _ in range(5):
        with measured(database) as cost:
            for number in islice(numbers, rounds):
                for ledger in ledgers:
                    ledger.heartbeat(10, 1000 * number, replace(SPENT, at=SPENT.at + 2 * number, steps=number))
        in_place.append(cost.records["Heap HOT_UPDATE"])
        logged.append(cost.log_bytes)
        elsewhere = sum(records for kind, records in cost.records.items() if kind.startswith("Heap UPDATE"))
        assert cost.transactions == cost.records["Transaction COMMIT"] == len(cost.statements) == beats
        assert cost.pings == 0
        assert in_place[-1] + elsewhere == beats

    assert max(in_place) >= 0.95 * beats, (in_place, cost.records)
    assert min(logged) <= 300 * beats, (logged, beats, cost.records)


HISTORY = """
INSERT INTO metric_chunks
    (run_id, behavior, key, attempt, number, count, first_step, last_step, steps, times, values)
SELECT :run_id, 'CartPole', 'key ' || key, 1, number, :count, number * :count, (number + 1) * :count - 1,
    :steps, :times, :values
FROM generate_series(1, 25) AS key CROSS JOIN generate_series(0, 100000 / :count) AS number
"""
LATEST = """
INSERT INTO latest_metrics (run_id, behavior, key, step, value, at)
SELECT :run_id, 'CartPole', 'key ' || key, 100000, 1, 0 FROM generate_series(1, 25) AS key
"""


def add_history(database: Database, run_id: str) -> None:
    """Insert 100,000 points of each of 25 metrics, in chunks as an attempt writes them: all have the bytes of one."""
    points = Points(np.zeros(CHUNK_POINTS, np.int64), np.zeros(CHUNK_POINTS), np.ones(CHUNK_POINTS))
    packed = dict(zip(("steps", "times", "values"), points.pack(), strict=True))
    with database.write() as session:
        session.execute(text(HISTORY), {"run_id": run_id, "count": CHUNK_POINTS, **packed})
        session.execute(text(LATEST), {"run_id": run_id})


def test_a_claim_reads_no_metrics_however_many_there_are(database: Database) -> None:
    """It holds the lock for which all other claims wait. The new attempt sets the metrics back itself."""
    run = make_run(database, name="with a history")
    first = AttemptLedger(database, make_claim(database))
    add_history(database, run.id)
    first.checkpoints.add(make_checkpoint(100))
    first.release("released", "The worker stops.")
    other = make_ledger(database, name="without one")
    other.release("released", "The worker stops.")
    queue = RunQueue(database)

    costs = {}
    for _ in range(2):
        with measured(database) as cost:
            claim = queue.claim("worker", 600)
        assert claim is not None
        costs[claim.run_id] = cost

    with_history = costs.pop(run.id)
    (without,) = costs.values()
    assert with_history.transactions == without.transactions == 2, "a look, and the claim"
    read = {table for table in Base.metadata.tables for each in with_history.statements if f" {table}" in each}
    assert "runs" in read
    assert not [table for table in read if "metric" in table]
    assert len(with_history.statements) == len(without.statements)
    # Not equal: a row whose page is full moves to another one, with an entry in each index.
    assert with_history.log_bytes <= 2 * without.log_bytes
