"""The jobs that keep the newest values of metrics: packing the tails of runs, and the extremes of former releases.

One short transaction for each run, under the run's lock; a run that is busy comes in the next round. So any number of
processes may do this, and one that is killed anywhere leaves the tail as it was, or packed.
"""

from collections.abc import Sequence
from typing import Final

from server.kit.db.database import Database, Session
from server.kit.jobs import Job, handle_rows
from server.metrics.compaction.repository import CompactionRepository
from server.metrics.points import Place
from server.metrics.repository import MetricRepository
from server.runs.events.repository import lock_run

RUNS: Final = 200
"""Runs whose tails are packed in one round."""
EXTREMES: Final = 50
"""Metrics whose extremes are computed in one round."""


def compaction_jobs(database: Database) -> Sequence[Job]:
    """Make the jobs."""

    def with_tails(session: Session) -> Sequence[str]:
        return CompactionRepository(session).due(RUNS)

    def without_extremes(session: Session) -> Sequence[Place]:
        return MetricRepository(session).stale(EXTREMES)

    return (
        Job("compaction", lambda: handle_rows(database, with_tails, _compact)),
        Job("extremes", lambda: handle_rows(database, without_extremes, _renew_extremes)),
    )


def _compact(session: Session, run_id: str) -> int:
    return 0 if lock_run(session, run_id, patient=False) is None else CompactionRepository(session).compact(run_id)


def _renew_extremes(session: Session, metric: Place) -> int:
    """Compute the extremes of a metric that another release has written."""
    if lock_run(session, metric[0], patient=False) is None:
        return 0
    MetricRepository(session).renew_extremes(*metric)
    return 1
