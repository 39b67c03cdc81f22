"""Metrics of former releases: what they wrote is read on, and what they did not know is computed."""

from sqlalchemy import select, text, update

from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import CHUNK_POINTS, MetricPoint
from server.metrics.repository import MetricRepository
from tests.factories import make_ledger, pack_metrics, read_metric, read_run

KEY = "Environment/Cumulative Reward"


def points(*steps: int) -> list[MetricPoint]:
    return [MetricPoint("CartPole", KEY, step, 1e9 + step, float(step)) for step in steps]


def read(database: Database) -> tuple[list[int], tuple[int, float | None, float | None]]:
    """Return the steps of the history, and the newest step with the highest and the lowest value."""
    run_id = read_run(database, "run").id
    with database.read() as session:
        (newest,) = MetricRepository(session).latest(run_id)
    steps: list[int] = read_metric(database, run_id, "CartPole", KEY).steps.tolist()
    return steps, (newest.step, newest.highest, newest.lowest)


def test_extremes_that_a_former_release_did_not_know_are_computed(database: Database) -> None:
    """One metric has no finite number, and keeps none."""
    ledger = make_ledger(database, name="run")
    ledger.metrics.append(points(*range(CHUNK_POINTS + 10)))
    pack_metrics(database)
    make_ledger(database, name="empty").metrics.append([MetricPoint("CartPole", KEY, 1, 1.0, float("nan"))])
    pack_metrics(database)
    before = read(database)
    downgrade_database(database, "0033")
    with database.write() as session:
        session.execute(update(MetricChunk).values(highest=None, lowest=None))
        session.execute(update(LatestMetric).values(highest=None, lowest=None, extremes_step=None))

    upgrade_database(database)

    assert read(database) == before == ([*range(CHUNK_POINTS + 10)], (CHUNK_POINTS + 9, CHUNK_POINTS + 9.0, 0.0))
    with database.read() as session:
        extremes = session.execute(select(MetricChunk.highest, MetricChunk.lowest).order_by(MetricChunk.highest)).all()
    assert {tuple(row) for row in extremes} == {(None, None), (511.0, 0.0), (521.0, 512.0)}


def test_what_this_release_has_packed_is_as_the_previous_one_reads_it(database: Database) -> None:
    """It looks for newest values whose `extremes_step` is not `step`."""
    ledger = make_ledger(database, name="run")
    for start in range(0, 3 * CHUNK_POINTS, 64):
        ledger.metrics.append(points(*range(start, start + 64)))
        pack_metrics(database)

    with database.read() as session:
        counts = session.scalars(select(MetricChunk.count).order_by(MetricChunk.number)).all()
        latest = session.execute(text("SELECT step, value, highest, lowest, extremes_step FROM latest_metrics")).all()
    last = 3 * CHUNK_POINTS - 1
    assert counts == [CHUNK_POINTS] * 3
    assert read(database)[0] == list(range(3 * CHUNK_POINTS))
    assert [tuple(row) for row in latest] == [(last, last, last, 0, last)]


def test_points_that_are_packed_stay_when_the_migration_is_taken_back(database: Database) -> None:
    make_ledger(database, name="run").metrics.append(points(10, 20))
    pack_metrics(database)

    downgrade_database(database, "0025")
    upgrade_database(database)

    assert read(database) == ([10, 20], (20, 20.0, 10.0))
