"""Metrics in the database: chunks, newest values, and what a later attempt supersedes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from server.metrics.models import MetricChunk
from server.metrics.points import CHUNK_POINTS, MetricPoint, Series, Window
from server.metrics.reader import MetricReader
from server.metrics.repository import MetricRepository
from tests.factories import make_checkpoint, make_claim, make_ledger, pack_metrics, read_run

KEY = "Environment/Cumulative Reward"


def points(steps: range, value: float | None = None, behavior: str = "CartPole") -> list[MetricPoint]:
    return [MetricPoint(behavior, KEY, step, 1e9 + step, float(step) if value is None else value) for step in steps]


def all_series(database: Database, run_ids: Sequence[str] = (), **wanted: Any) -> list[Series]:
    """Read the metric of runs, none of which is archived."""
    reader = MetricReader(database, FolderStore(Path("/nonexistent")))
    return reader.series(run_ids or [read_run(database, "run").id], [KEY], **wanted)


def series(database: Database, behavior: str = "CartPole", points: int = 100_000, **wanted: Any) -> Series:
    (found,) = all_series(database, behavior=behavior, points=points, **wanted)
    return found


def test_points_beyond_a_step_come_as_they_were_recorded(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.metrics.append(points(range(1300)))

    page = series(database, points=3, window=Window(1001), thinned=False)

    assert page.steps.tolist() == [1001, 1002, 1003], "the first three, none of them thinned"


def test_chunks_fill_up_before_the_next_begins(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.metrics.append(points(range(10)))
    pack_metrics(database)
    ledger.metrics.append(points(range(10, 2 * CHUNK_POINTS + 1)))
    pack_metrics(database)

    with database.read() as session:
        order = select(MetricChunk.count, MetricChunk.first_step, MetricChunk.last_step).order_by(MetricChunk.number)
        chunks = [tuple(row) for row in session.execute(order)]

    full = CHUNK_POINTS
    assert chunks == [(full, 0, full - 1), (full, full, 2 * full - 1), (1, 2 * full, 2 * full)]


def test_an_unknown_metric_has_no_series(database: Database) -> None:
    make_ledger(database, name="run")

    assert all_series(database) == []


def test_a_window_is_thinned_inside(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.metrics.append(points(range(2 * CHUNK_POINTS)))

    found = series(database, points=4, window=Window(500, 539))

    assert found.steps.tolist() == [509, 519, 529, 539]
    assert found.minima.tolist() == [500.0, 510.0, 520.0, 530.0]
    assert found.counts.tolist() == [10] * 4


def test_a_window_without_points_is_an_empty_series(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.metrics.append(points(range(10)))

    assert series(database, window=Window(100, 200)).total == 0


def test_series_of_several_runs_come_in_the_order_of_the_runs_with_common_steps(database: Database) -> None:
    run_ids = []
    for name, steps in (("second", range(0, 400, 20)), ("first", range(0, 600, 10))):
        ledger = make_ledger(database, name=name)
        ledger.metrics.append([*points(steps), MetricPoint("", "other", 1, 1e9, 1.0)])
        run_ids.append(read_run(database, name).id)

    found = all_series(database, run_ids, points=6, common_steps=True)

    assert [each.run_id for each in found] == run_ids
    assert found[0].steps.tolist() == found[1].steps.tolist()
    assert found[0].counts.tolist() == [5, 5, 5, 4, 0, 0] or found[0].counts.sum() == 20
    assert found[1].counts.tolist() == [10] * 6


def test_points_past_the_restored_step_are_superseded_per_behavior(database: Database) -> None:
    """Recorded to step 100; the checkpoint is of CartPole's step 60 and Pendulum's step 30."""
    first = make_ledger(database, name="run")
    first.checkpoints.add(make_checkpoint(90, steps={"CartPole": 60, "Pendulum": 30}))
    run_metric = [MetricPoint("", "Ludus/Simulators", step, 1e9, 1.0) for step in range(0, 101, 10)]
    first.metrics.append([*points(range(0, 101, 10)), *points(range(0, 101, 10), behavior="Pendulum"), *run_metric])
    first.release("trainer_lost", "It crashed.")

    second = AttemptLedger(database, make_claim(database))
    with database.read() as session:
        latest = {m.behavior: m.step for m in MetricRepository(session).latest(read_run(database, "run").id)}
    second.metrics.append(points(range(70, 131, 20), value=-1.0))

    assert latest == {"CartPole": 60, "Pendulum": 30, "": 90}
    assert series(database).steps.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 90, 110, 130]
    assert series(database).values.tolist()[-5:] == [60.0, -1.0, -1.0, -1.0, -1.0]
    assert series(database, "Pendulum").steps.tolist() == [0, 10, 20, 30]


def test_an_attempt_that_begins_anew_supersedes_everything(database: Database) -> None:
    first = make_ledger(database, name="run")
    first.metrics.append(points(range(1, 50)))
    first.release("trainer_lost", "It crashed before its first checkpoint.")

    second = AttemptLedger(database, make_claim(database))
    with database.read() as session:
        assert MetricRepository(session).latest(read_run(database, "run").id) == []
    second.metrics.append(points(range(1, 3)))

    assert series(database).steps.tolist() == [1, 2]
