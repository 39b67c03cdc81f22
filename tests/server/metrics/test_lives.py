"""A point lives in the tail, in chunks or in a Parquet file, or is superseded.

The model is a table of the points that count, by metric and step.
"""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ludus.schemas.states import RunState
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.settings import MetricsSettings
from server.lifecycle.attempts import AttemptLedger
from server.metrics.jobs import MetricRetention
from server.metrics.points import ListedMetric, MetricPoint, Window
from server.metrics.reader import MetricReader
from server.metrics.repository import MetricRepository
from tests.examples import examples
from tests.factories import claim_run, make_checkpoint, make_run, pack_metrics

NAMES = [("", "Resources/CPU"), ("CartPole", "loss"), ("CartPole", "reward"), ("Pendulum", "reward")]
WHICH = ("last", "max", "min")


class Lives(RuleBasedStateMachine):
    """One run: its attempts, the jobs of the controller, and what readers see."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__()
        self.database, self.store = database, FolderStore(folder)
        self.step = 0
        self.checkpoints: list[dict[str, int]] = []
        self.counting: defaultdict[tuple[str, str], dict[int, tuple[int, float]]] = defaultdict(dict)
        """Metric -> step -> attempt and value."""

    @initialize()
    def begin(self) -> None:
        self.run_id = make_run(self.database).id
        self.ledger = AttemptLedger(self.database, claim_run(self.database, self.run_id))
        self.attempt = 1

    @rule(
        values=st.dictionaries(
            st.sampled_from(NAMES), st.floats(-100, 100) | st.sampled_from([math.nan, math.inf]), min_size=1
        ),
        distance=st.integers(1, 50),
        count=st.integers(1, 400),
        twice=st.booleans(),
        saves=st.booleans(),
        packs=st.booleans(),
    )
    def append(
        self, values: dict[tuple[str, str], float], distance: int, count: int, *, twice: bool, saves: bool, packs: bool
    ) -> None:
        """Save a checkpoint or not, and record summaries, `twice` as a supervisor that saw no answer."""
        if saves:
            self.checkpoints.append({"": self.step, "CartPole": self.step, "Pendulum": self.step // 2})
            steps = {"CartPole": self.step, "Pendulum": self.step // 2}
            path = f"runs/{self.run_id}/{len(self.checkpoints)}"
            self.ledger.checkpoints.add(make_checkpoint(self.step, steps=steps, path=path))
        points = []
        for index in range(count):
            self.step += distance
            for name, value in values.items():
                points.append(MetricPoint(*name, self.step, 1e9 + self.step, value + index))
                self.counting[name][self.step] = (self.attempt, value + index)
        for _ in range(1 + twice):
            self.ledger.metrics.append(points)
        if packs:
            pack_metrics(self.database)

    @rule(rewinds=st.booleans())
    def restart(self, *, rewinds: bool) -> None:
        """Resume from the newest checkpoint, or anew. The supervisor sets metrics back before it writes any."""
        self.ledger.release("released", "The worker stops.")
        self.ledger = AttemptLedger(self.database, claim_run(self.database, self.run_id))
        self.attempt += 1
        limits = self.checkpoints[-1] if self.checkpoints else {"": 0, "CartPole": 0, "Pendulum": 0}
        self.step = limits["CartPole"]
        for (behavior, _), points in self.counting.items():
            for step in [step for step in points if step > limits[behavior]]:
                del points[step]
        if not rewinds:
            self.compare_histories()
        self.ledger.rewind_metrics()

    def teardown(self) -> None:
        """End the run, whose points then move to a file."""
        if not hasattr(self, "run_id"):
            return
        self.ledger.move(RunState.CANCELLED)
        pack_metrics(self.database)
        self.compare_newest()
        self.compare_histories()
        job = MetricRetention(self.database, self.store, MetricsSettings(archive_days=1e-12))
        assert job.archive() == any(self.counting.values())
        self.compare_newest()
        self.compare_histories()

    @invariant()
    def compare_newest(self) -> None:
        if not hasattr(self, "run_id"):
            return
        expected = {}
        for name, points in self.counting.items():
            if points:
                last = max(points)
                finite = [value for _, value in points.values() if math.isfinite(value)]
                newest = points[last][1]
                numbers = (
                    newest if math.isfinite(newest) else None,
                    max(finite, default=None),
                    min(finite, default=None),
                )
                expected[name] = (last, *numbers)
        with self.database.read() as session:
            metrics = MetricRepository(session)
            newest_values = {
                (m.behavior, m.key): (m.step, m.value, m.highest, m.lowest) for m in metrics.latest(self.run_id)
            }
            listed = [
                ListedMetric.parse(f"{behavior}:{key}@{which}")
                for behavior, key in NAMES
                if behavior
                for which in WHICH
            ]
            numbers = metrics.listed([self.run_id], listed)[self.run_id]
            keys = metrics.keys([self.run_id])
        assert newest_values == expected
        assert keys == sorted({key for _, key in expected})
        for metric, number in numbers.items():
            row = expected.get((metric.behavior or "", metric.key))
            assert number == (None if row is None else row[1 + WHICH.index(metric.which)])

    @invariant()
    def compare_histories(self) -> None:
        if not hasattr(self, "run_id"):
            return
        reader, keys = MetricReader(self.database, self.store), sorted({key for _, key in NAMES})
        window = Window(self.step // 3, 2 * self.step // 3)
        for part in (Window(), window):
            counting = {
                name: {step: value for step, (_, value) in points.items() if part.first <= step <= part.last}
                for name, points in self.counting.items()
            }
            found = reader.series([self.run_id], keys, window=part, points=100_000)
            series = {(metric.behavior, metric.key): metric for metric in found if metric.total}
            assert list(series) == sorted(name for name, points in counting.items() if points)
            for name, metric in series.items():
                values = [value for _, value in sorted(counting[name].items())]
                assert metric.steps.tolist() == sorted(counting[name])
                # A bucket of one value that is no finite number has none.
                np.testing.assert_equal(
                    metric.values, [value if math.isfinite(value) else math.nan for value in values]
                )
        by_attempt = {
            (behavior, key, attempt): points.steps.tolist()
            for behavior, key, of_attempts in reader.metrics(self.run_id)
            for attempt, points in of_attempts.items()
            if len(points)
        }
        expected: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
        for (behavior, key), points in self.counting.items():
            for step in sorted(points):
                expected[behavior, key, points[step][0]].append(step)
        assert by_attempt == expected


def test_readers_see_the_points_that_count_in_each_of_their_lives(database: Database, tmp_path: Path) -> None:
    run_state_machine_as_test(
        lambda: Lives(database, tmp_path / "artifacts"),
        settings=settings(
            max_examples=examples(10),
            stateful_step_count=6,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
