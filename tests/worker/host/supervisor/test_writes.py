"""Writes that wait: their order, and what becomes of them when the database goes away between two of them."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select

from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.runs.models import Event
from tests.factories import make_claim, make_run
from tests.worker.host.supervisor.outage import outage
from worker.host.supervisor.writes import Writes


def said(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Event.message).where(Event.type == "said").order_by(Event.seq)))


def test_a_database_that_goes_away_between_two_writes_loses_and_doubles_none(impatient: Path) -> None:
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    make_run(database)
    ledger, writes = AttemptLedger(database, make_claim(database)), Writes()
    with ExitStack() as away:
        writes.add(ledger.event, "said", "1")
        writes.add(away.enter_context, outage(impatient))
        writes.add(ledger.event, "said", "2", level="warning")
        writes.add(ledger.event, "said", "3")

        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                writes.flush(10)
            assert (len(writes), said(database)) == (2, ["1"])

    writes.flush(10)

    assert (len(writes), said(database)) == (0, ["1", "2", "3"])
    database.close()


def test_a_flush_begins_nothing_after_its_time() -> None:
    """Each takes 50 ms: the lease has to be kept in between."""
    writes, written = Writes(), list[int]()
    for number in range(10):
        writes.add(time.sleep, 0.05)
        writes.add(written.append, number)

    writes.flush(0.12)

    assert 0 < len(writes) < 20
    writes.flush(10)
    assert written == list(range(10))
