"""Readers answer the same wherever the points are: in the tail, partly packed, wholly packed, or in a Parquet file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database
from server.kit.metrics_settings import MetricsSettings
from server.lifecycle.attempts.repository import AttemptLedger
from server.metrics.jobs import MetricRetention
from server.metrics.points import ListedMetric, MetricPoint, Window
from server.metrics.reader import MetricReader
from server.metrics.repository import MetricRepository
from tests.examples import examples
from tests.factories import claim_run, make_checkpoint, make_run, pack_metrics

KEYS = [("", "Resources/CPU"), ("CartPole", "reward"), ("CartPole", "loss"), ("Pendulum", "reward")]
WANTED = [ListedMetric.parse(text) for text in ("reward", "reward@max", "reward@min", "CartPole:loss@max")]


@dataclass(frozen=True)
class Append:
    """One summary: these metrics, at the next steps; `twice` as a supervisor that saw no answer."""

    values: dict[int, float]
    steps: int
    points: int
    twice: bool


@dataclass(frozen=True)
class Restart:
    """A new attempt that begins this far back."""

    back: int


numbers = st.floats(-100, 100) | st.sampled_from([math.nan, math.inf])
appends = st.builds(
    Append,
    st.dictionaries(st.integers(0, len(KEYS) - 1), numbers, min_size=1),
    st.integers(1, 50),
    st.integers(1, 400),
    st.booleans(),
)
histories = st.lists(
    st.tuples(appends | st.builds(Restart, st.integers(0, 600)), st.booleans()), min_size=1, max_size=5
)


def record(database: Database, name: str, history: list[tuple[Append | Restart, bool]], packs: str) -> str:
    """Have a run of its own do all of this, and end. `packs`: never, sometimes, or always."""
    run_id = make_run(database, name=name).id
    ledger = AttemptLedger(database, claim_run(database, run_id))
    step = 0
    for number, (action, sometimes) in enumerate(history):
        if isinstance(action, Append):
            points = []
            for index in range(action.points):
                step += action.steps
                points += [
                    MetricPoint(*KEYS[key], step, 1e9 + step, value + index) for key, value in action.values.items()
                ]
            for _ in range(1 + action.twice):
                ledger.metrics.append(points)
        else:
            step = max(0, step - action.back)
            steps, path = {"CartPole": step, "Pendulum": step // 2}, f"runs/{run_id}/{number}"
            ledger.checkpoints.add(make_checkpoint(step, steps=steps, path=path))
            ledger.release("released", "The worker stops.")
            ledger = AttemptLedger(database, claim_run(database, run_id))
            ledger.rewind_metrics()  # as its supervisor does, before anything else
            step += 1
        if packs == "always" or (packs == "sometimes" and sometimes):
            pack_metrics(database, run_id)
    ledger.move(RunState.CANCELLED)
    if packs == "always":
        pack_metrics(database, run_id)
    return run_id


def answers(database: Database, store: ArtifactStore, run_id: str) -> list[Any]:
    """Ask every reader."""
    reader, keys = MetricReader(database, store), sorted({key for _, key in KEYS})
    with database.read() as session:
        metrics = MetricRepository(session)
        found: list[Any] = [
            [(m.behavior, m.key, m.step, m.value, m.at, m.highest, m.lowest) for m in metrics.latest(run_id)],
            metrics.scores(run_id),
            list(metrics.listed([run_id], WANTED)[run_id].values()),
            metrics.keys([run_id]),
            [place[1:] for place in metrics.places([run_id], keys)],
        ]
    for wanted in (
        {},
        {"points": 7, "smoothing": 0.9, "window": Window(40, 5000)},
        {"points": 30, "thinned": False, "window": Window(101)},
        {"points": 50, "common_steps": True},
    ):
        found += [
            (each.behavior, each.key, *(np.round(column, 6).tolist() for column in _columns(each)))
            for each in reader.series([run_id], keys, **wanted)
        ]
    found += [
        (behavior, key, [(attempt, each.steps.tolist()) for attempt, each in theirs.items() if len(each)])
        for behavior, key, theirs in reader.metrics(run_id)
    ]
    return found


def _columns(series: Any) -> list[Any]:
    columns = [series.steps, series.times, series.values, series.minima, series.maxima, series.counts]
    return columns if series.smoothed is None else [*columns, series.smoothed]


@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories)
def test_readers_answer_the_same_at_every_stage_of_packing(database: Database, tmp_path: Path, history: Any) -> None:
    store = FolderStore(tmp_path / "artifacts")
    runs = [record(database, "r", history, packs) for packs in ("never", "sometimes", "always")]

    first, *others = [answers(database, store, run_id) for run_id in runs]
    for other in others:
        np.testing.assert_equal(other, first)

    job = MetricRetention(database, store, MetricsSettings(archive_days=1e-12))
    job.archive()
    archived = answers(database, store, runs[-1])
    np.testing.assert_equal(archived, first)
