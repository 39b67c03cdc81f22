"""The price of metrics in the database: statements, and bytes of PostgreSQL's write-ahead log (WAL)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import event, func, insert, select

from server.kit.db.database import Database
from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import CHUNK_POINTS, MetricPoint, Points
from server.metrics.repository import MetricRepository, PackingRepository
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import make_checkpoint, make_claim, make_ledger, read_run
from tests.server.lifecycle.leases.test_cost import measured as measured_log

SUMMARIES = 50
KEYS = [f"Losses/Some Measured Quantity {number}" for number in range(25)]
MAX_STATEMENTS, MAX_WAL = 3, 3000


@dataclass
class Cost:
    """What a block of code asked of the database."""

    statements: int = 0
    rows: int = 0
    """That came back."""


@contextmanager
def measured(database: Database) -> Iterator[Cost]:
    """Count."""
    cost, engine = Cost(), database.engine

    def executed(_connection: object, cursor: object, statement: str, *_rest: object) -> None:
        cost.statements += not statement.startswith("BEGIN")  # which has the time-outs with it, in one round trip
        cost.rows += max(0, getattr(cursor, "rowcount", 0)) if getattr(cursor, "description", None) else 0

    event.listen(engine, "after_cursor_execute", executed)
    yield cost
    event.remove(engine, "after_cursor_execute", executed)


def summary(step: int) -> list[MetricPoint]:
    return [MetricPoint("CartPole", key, step, 1e9 + step / 7, math.sin(step + i)) for i, key in enumerate(KEYS)]


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_summary_of_25_keys_takes_at_most_3_statements_and_3_kb_of_wal(database: Database) -> None:
    ledger = make_ledger(database, name="run")

    with measured_log(database) as cost:
        for number in range(SUMMARIES):
            ledger.metrics.append(summary(1000 * number))

    assert cost.records["Transaction COMMIT"] == SUMMARIES
    assert len(cost.statements) <= MAX_STATEMENTS * SUMMARIES
    assert 500 < cost.log_bytes / SUMMARIES <= MAX_WAL


def long_history(database: Database, run_id: str, chunks: int) -> None:
    """Give a run's first attempt full chunks of each key, at steps from 1 on, and their newest values."""
    size = chunks * CHUNK_POINTS
    steps = Points.of([MetricPoint("", "", step, float(step), float(step)) for step in range(1, size + 1)])
    same = {"run_id": run_id, "behavior": "CartPole"}
    rows = [
        {**same, "key": key, "attempt": 1, "number": number}
        | MetricChunk.columns(steps[number * CHUNK_POINTS : (number + 1) * CHUNK_POINTS])
        for key in KEYS
        for number in range(chunks)
    ]
    newest = {"step": size, "value": 1.0, "at": 1.0, "highest": float(size), "lowest": 1.0, "extremes_step": size}
    with database.write() as session:
        session.execute(insert(MetricChunk), rows)
        session.execute(insert(LatestMetric), [{**same, "key": key, **newest} for key in KEYS])


def rewound(database: Database, name: str, chunks: int) -> Cost:
    """Have a run with a history resume 700 points before its end; return the price of the claim and of its rewind."""
    ledger = make_ledger(database, name=name)
    run_id = read_run(database, name).id
    long_history(database, run_id, chunks)
    restored = chunks * CHUNK_POINTS - 700
    ledger.checkpoints.add(make_checkpoint(restored, steps={"CartPole": restored}, path=f"runs/{name}"))
    ledger.release("released", "The worker stops.")

    with measured(database) as cost:
        make_claim(database)
        with database.write() as session:
            PackingRepository(session).rewind(run_id)

    with database.read() as session:
        latest = MetricRepository(session).latest(run_id)
        stored = session.scalar(select(func.sum(MetricChunk.count)).where(MetricChunk.run_id == run_id))
    found = {(each.step, each.value, each.highest, each.lowest) for each in latest}
    assert (len(latest), found) == (len(KEYS), {(restored, restored, restored, 1.0)})
    assert stored == restored * len(KEYS)

    return cost


def test_to_resume_after_a_long_history_takes_as_many_statements_and_rows_as_after_a_short_one(
    database: Database,
) -> None:
    short, long = rewound(database, "short", 2), rewound(database, "long", 40)

    assert long.statements == short.statements
    assert long.rows <= short.rows + 5  # the other run
