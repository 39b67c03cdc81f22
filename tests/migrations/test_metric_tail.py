"""Metrics while two releases work on one database: the one before `0026` writes chunks and newest values itself."""

from sqlalchemy import insert, select, text

from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.kit.jobs import JobLoop
from server.lifecycle.attempts.repository import AttemptLedger
from server.metrics.compaction.job import compaction_jobs
from server.metrics.listed import ListedMetric
from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import CHUNK_POINTS, MetricPoint, Points
from server.metrics.repository import MetricRepository
from tests.factories import make_checkpoint, make_claim, make_ledger, pack_metrics, read_run

BEFORE = "0025"
KEY = "Environment/Cumulative Reward"
MAXIMUM = ListedMetric.parse(f"{KEY}@max")
PREVIOUS_CHUNK = [
    *("run_id", "behavior", "key", "attempt", "number"),
    *("count", "first_step", "last_step", "steps", "times", "values"),
]
"""Its columns of a chunk."""


def points(*steps: int) -> list[MetricPoint]:
    return [MetricPoint("CartPole", KEY, step, 1e9 + step, float(step)) for step in steps]


def as_before(database: Database, attempt: int, *steps: int) -> None:
    """Write as the previous release does: a chunk without extremes, and the newest value with them."""
    run_id, recorded = read_run(database, "run").id, Points.of(points(*steps))
    chunk = {"run_id": run_id, "behavior": "CartPole", "key": KEY, "attempt": attempt, "number": 0}
    chunk |= MetricChunk.columns(recorded)
    columns = ", ".join(f'"{name}"' for name in PREVIOUS_CHUNK)
    values = {"step": steps[-1], "value": float(steps[-1]), "at": 1e9, "extremes_step": steps[-1]}
    place = {"run_id": run_id, "behavior": "CartPole", "key": KEY}
    with database.write() as session:
        session.execute(
            text(f"INSERT INTO metric_chunks ({columns}) VALUES ({', '.join(f':{name}' for name in PREVIOUS_CHUNK)})"),
            {name: chunk[name] for name in PREVIOUS_CHUNK},
        )
        session.execute(text("DELETE FROM latest_metrics"))
        session.execute(insert(LatestMetric).values(**place, **values, highest=float(max(steps)), lowest=1.0))


def read(database: Database) -> tuple[list[int], int, float | None]:
    """Return the steps of the history, the newest step, and the highest value."""
    run_id = read_run(database, "run").id
    with database.read() as session:
        metrics = MetricRepository(session)
        history = metrics.history(run_id, "CartPole", KEY)
        (newest,) = metrics.latest(run_id)
        assert history is not None
        return history.steps.tolist(), newest.step, metrics.listed([run_id], [MAXIMUM])[run_id][MAXIMUM]


def test_a_run_of_the_previous_release_goes_on_with_this_one(database: Database) -> None:
    """Its points from step 30 on are superseded; the extremes of the rest are unknown until the controller reads it."""
    first = make_ledger(database, name="run")
    as_before(database, 1, 10, 20, 30, 40)
    first.checkpoints.add(make_checkpoint(25, steps={"CartPole": 25}))
    first.release("trainer_lost", "It crashed.")
    second = AttemptLedger(database, make_claim(database))
    with database.write() as session:
        MetricRepository(session).rewind(read_run(database, "run").id)

    second.metrics.append(points(26, 36))
    assert read(database)[:2] == ([10, 20, 26, 36], 36)
    pack_metrics(database)
    JobLoop(compaction_jobs(database), 0.0).tick()

    assert read(database) == ([10, 20, 26, 36], 36, 36.0)


def test_a_run_of_this_release_goes_on_with_the_previous_one(database: Database) -> None:
    """The tail of the first attempt is packed after the second one has written its newest value."""
    first = make_ledger(database, name="run")
    first.metrics.append(points(10, 20, 30, 40))
    first.checkpoints.add(make_checkpoint(25, steps={"CartPole": 25}))
    first.release("trainer_lost", "It crashed.")
    make_claim(database)
    as_before(database, 2, 26, 36)

    assert read(database) == ([10, 20, 26, 36], 36, 36.0)
    pack_metrics(database)

    assert read(database) == ([10, 20, 26, 36], 36, 36.0)


def test_what_this_release_has_packed_is_as_the_previous_one_reads_it(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    for start in range(0, 3 * CHUNK_POINTS, 64):
        ledger.metrics.append(points(*range(start, start + 64)))
        pack_metrics(database)

    with database.read() as session:
        query = select(*(MetricChunk.__table__.c[name] for name in PREVIOUS_CHUNK)).order_by(MetricChunk.number)
        chunks = session.execute(query).all()
        latest = session.execute(text("SELECT step, value, highest, lowest, extremes_step FROM latest_metrics")).all()
    steps = Points.joined([Points.unpack(chunk.steps, chunk.times, chunk.values) for chunk in chunks]).steps
    assert steps.tolist() == list(range(3 * CHUNK_POINTS))
    assert [chunk.count for chunk in chunks] == [CHUNK_POINTS] * 3
    last = 3 * CHUNK_POINTS - 1
    assert [tuple(row) for row in latest] == [(last, last, last, 0, last)]


def test_points_that_are_packed_stay_when_the_migration_is_taken_back(database: Database) -> None:
    make_ledger(database, name="run").metrics.append(points(10, 20))
    pack_metrics(database)

    downgrade_database(database, BEFORE)
    upgrade_database(database)

    assert read(database) == ([10, 20], 20, 20.0)
