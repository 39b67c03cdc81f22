"""Reports that come faster than they can be written delay nothing else, and none is lost."""

import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import select

from server.kit.db.database import Database
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.metrics.points import MetricPoint
from server.runs.models import Event
from tests.factories import make_run, read_metric
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import Threaded, messages_of, supervise


class SlowMetrics(AttemptLedger):
    """A ledger that takes 50 ms for each write of metrics."""

    def __init__(self, database: Database, claim: Claim) -> None:
        super().__init__(database, claim)
        append = self.metrics.append

        def slowly(points: Sequence[MetricPoint]) -> None:
            time.sleep(0.05)  # allow: sleep, because the database is slow
            append(points)

        self.metrics.append = slowly  # type: ignore[method-assign]


def test_a_checkpoint_is_stored_while_metrics_come_faster_than_they_are_written(
    database: Database, tmp_path: Path
) -> None:
    run = make_run(database, name="run")

    supervise(database, tmp_path, Threaded(trainers.summarizes_until_saved, seconds=10.0), ledger=SlowMetrics)

    assert messages_of(database)["ended"] == "stored"
    with database.read() as session:
        told = session.scalars(select(Event.data).where(Event.type == "ended")).one()["step"]
    history = read_metric(database, run.id, "CartPole", "reward")
    assert history.steps.tolist() == list(range(1, told + 1)), "every summary is there"
