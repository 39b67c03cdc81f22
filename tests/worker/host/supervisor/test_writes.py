"""Writes that wait: their order, and what becomes of them when the database goes away between two of them."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select

from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.metrics.points import MetricPoint
from server.runs.models import Event
from tests.factories import make_claim, make_run, read_metric
from tests.worker.host.supervisor.outage import outage
from worker.host.supervisor.writes import AT_ONCE, MOST_POINTS, Writes


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


def history(database: Database, run_id: str, key: str) -> list[tuple[int, float]]:
    points = read_metric(database, run_id, "Walker", key)
    return list(zip(points.steps.tolist(), points.values.tolist(), strict=True))


REPORTS = [
    [MetricPoint("Walker", "reward", 100, 1.0, 1.0), MetricPoint("Walker", "length", 100, 1.0, 10.0)],
    [MetricPoint("Walker", "reward", 200, 2.0, 2.0), MetricPoint("Walker", "reward", 200, 2.0, 3.0)],
    [MetricPoint("Walker", "reward", 200, 3.0, 9.0), MetricPoint("Walker", "reward", 150, 3.0, 9.0)],
    [MetricPoint("Walker", "reward", 300, 4.0, 4.0), MetricPoint("Walker", "length", 300, 4.0, 30.0)],
]


def test_points_that_wait_together_are_read_like_points_that_were_written_one_report_after_the_other(
    database: Database,
) -> None:
    found = []
    for at_once in (True, False):
        run = make_run(database)
        ledger, writes = AttemptLedger(database, make_claim(database)), Writes()
        for report in REPORTS:
            writes.add_points(ledger.metrics.append, report)
            if not at_once:
                writes.flush(10)
        assert len(writes) == int(at_once), "all reports that wait are one write"
        writes.flush(10)
        found.append([history(database, run.id, key) for key in ("reward", "length")])

    assert found[0] == found[1] == [[(100, 1.0), (200, 3.0), (300, 4.0)], [(100, 10.0), (300, 30.0)]]


def test_no_write_waits_for_more_than_one_write_of_metrics() -> None:
    writes, written = Writes(), list[object]()
    for number in range(100):
        writes.add_points(written.append, [MetricPoint("Walker", "reward", number, 1.0, 1.0)])
        if number in {0, 50}:
            writes.add(written.append, number)

    writes.flush(10)

    points, *others = written
    assert others == [0, 50]
    assert isinstance(points, list)
    assert [point.step for point in points] == list(range(100))


def test_points_of_an_outage_are_all_written_after_it_and_none_is_doubled(impatient: Path) -> None:
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    run = make_run(database)
    ledger, writes = AttemptLedger(database, make_claim(database)), Writes()
    with outage(impatient):
        for step in range(1, 4):
            writes.add_points(ledger.metrics.append, [MetricPoint("Walker", "reward", step, 1.0, float(step))])
            with pytest.raises(DatabaseUnavailable):
                writes.flush(10)
    writes.add_points(ledger.metrics.append, [MetricPoint("Walker", "reward", 4, 1.0, 4.0)])

    writes.flush(10)

    assert history(database, run.id, "reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    database.close()


def test_points_without_end_are_thinned_evenly_and_the_newest_is_kept() -> None:
    writes, written = Writes(), list[list[MetricPoint]]()
    for start in range(0, 2 * MOST_POINTS, 1024):
        steps = range(start, start + 1024)
        writes.add_points(written.append, [MetricPoint("Walker", "reward", step, 1.0, 1.0) for step in steps])

    writes.flush(10)

    steps = [point.step for part in written for point in part]
    assert len(steps) <= MOST_POINTS
    assert steps[-1] == 2 * MOST_POINTS - 1
    assert max(len(part) for part in written) <= AT_ONCE
