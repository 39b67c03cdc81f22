"""What an attempt uses of its host becomes metrics of its run."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from server.kit.db.database import Database
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.metrics.points import MetricPoint, Points
from server.metrics.repository import MetricRepository
from tests.factories import make_checkpoint, make_claim, make_ledger, make_run, read_metric, read_run
from tests.server.runs.test_diagnosis import SPENT
from tests.waiting import eventually
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import Separate, supervise
from worker.host import resources
from worker.host.resources import TRAINER_CPU, TRAINER_MEMORY
from worker.host.supervisor.lease import Lease, Writes
from worker.host.supervisor.loop import COLLECTORS_IDLE, LEARNER_IDLE, ResourceRecorder


@pytest.fixture(autouse=True)
def _quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "SAMPLE_SECONDS", 0.02)


def recorded(database: Database, key: str) -> Points:
    """Return the points of a metric of the run as a whole."""
    return read_metric(database, "run", "", key)


def steps(database: Database, key: str = TRAINER_MEMORY) -> Sequence[int]:
    found: list[int] = recorded(database, key).steps.tolist()
    return found


def test_a_point_is_at_the_runs_step_and_a_run_that_stands_still_gets_no_other(
    database: Database, ledger: AttemptLedger, lease: Lease
) -> None:
    writes = Writes()
    recorder = ResourceRecorder(lease, ledger, writes, ())

    with recorder.meter.measuring(os.getpid()):
        eventually(lambda: recorder.meter.memory > 0)
        recorder.record(summary=True)
        assert len(writes) == 0, "the run has made no step"
        lease.step = 100
        recorder.record(summary=True)
        recorder.record(summary=True)
    writes.flush(10)

    assert steps(database) == [100]
    assert recorded(database, TRAINER_MEMORY).values[0] > 2**20


def test_the_idle_shares_of_learner_and_collectors_are_points_as_soon_as_they_are_measured(
    database: Database, ledger: AttemptLedger, lease: Lease
) -> None:
    writes = Writes()
    recorder = ResourceRecorder(lease, ledger, writes, ())

    with recorder.meter.measuring(os.getpid()):
        for step, spent in ((100, None), (200, replace(SPENT, learning=0.25, checkpointing=0.05, collecting=0.4))):
            eventually(lambda: recorder.meter.memory > 0)
            lease.step, lease.time_spent = step, spent
            eventually(lambda: recorder.record(summary=True) or len(writes) > 0)
            writes.flush(10)

    for key, value in ((LEARNER_IDLE, 0.7), (COLLECTORS_IDLE, 0.6)):
        assert steps(database, key) == [200]
        assert recorded(database, key).values.tolist() == pytest.approx([value])


def test_there_is_no_point_without_a_new_measurement(database: Database, ledger: AttemptLedger, lease: Lease) -> None:
    writes = Writes()
    recorder = ResourceRecorder(lease, ledger, writes, ())
    with recorder.meter.measuring(os.getpid()):
        eventually(lambda: recorder.meter.memory > 0)
    for step in (100, 200, 300):
        lease.step = step
        recorder.record(summary=True)
    writes.flush(10)

    assert steps(database) == [100]


def test_a_report_of_a_step_alone_makes_no_point_but_one_after_a_summary_does(
    database: Database, ledger: AttemptLedger, lease: Lease
) -> None:
    writes = Writes()
    recorder = ResourceRecorder(lease, ledger, writes, ())
    with recorder.meter.measuring(os.getpid()):
        eventually(lambda: recorder.meter.memory > 0)
    lease.step = 100
    recorder.record(summary=False)
    assert len(writes) == 0
    lease.step = 0
    recorder.record(summary=True)
    assert len(writes) == 0
    lease.step = 200
    recorder.record(summary=False)
    writes.flush(10)

    assert steps(database) == [200]


def test_points_beyond_the_checkpoint_from_which_a_run_resumes_count_no_more(database: Database) -> None:
    first = make_ledger(database, name="run")
    first.metrics.append([MetricPoint("", TRAINER_MEMORY, step, 1.0, 1.0) for step in (50, 100, 150)])
    first.checkpoints.add(make_checkpoint(100))
    first.release("trainer_lost", "It was killed.")
    claim = make_claim(database)
    ledger, writes = AttemptLedger(database, claim), Writes()
    lease = Lease(claim, ledger, WorkerSettings())
    recorder = ResourceRecorder(lease, ledger, writes, ())

    with recorder.meter.measuring(os.getpid()):
        eventually(lambda: recorder.meter.memory > 0)
    recorder.record(summary=True)
    lease.step = 120
    recorder.record(summary=False)
    writes.flush(10)

    assert steps(database) == [50, 100, 120]


@pytest.mark.long
def test_a_supervised_trainer_has_points_as_it_goes_on(database: Database, tmp_path: Path) -> None:
    make_run(database, name="run")
    flag = tmp_path / "enough"

    def end_with_some() -> None:
        eventually(lambda: len(steps(database, TRAINER_CPU)) >= 3)
        flag.touch()

    watching = threading.Thread(target=end_with_some)
    watching.start()
    supervise(database, tmp_path, Separate(trainers.summarizes, flag=str(flag)))
    watching.join()

    found = recorded(database, TRAINER_MEMORY)
    assert len(found) >= 3
    assert (found.values > 2**20).all()
    assert (recorded(database, TRAINER_CPU).values >= 0).all()
    with database.read() as session:
        keys = {metric.key for metric in MetricRepository(session).latest(read_run(database, "run").id)}
    assert keys == {"reward", TRAINER_CPU, TRAINER_MEMORY}, "no collector, no GPU"
