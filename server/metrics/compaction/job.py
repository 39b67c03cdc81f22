"""The compaction job: a thread of the controller that packs the tails of metrics.

One short transaction for each run, under the run's lock; a run that is busy comes in the next round. So any number of
jobs may run, and one that is killed anywhere leaves the tail as it was, or packed.
"""

import threading

import structlog

from server.kit.db.database import Database
from server.kit.errors import Unavailable
from server.metrics.compaction.repository import CompactionRepository
from server.runs.events.repository import lock_run

PAUSE_SECONDS = 2.0
"""Between two rounds."""
RUNS = 200
"""Of one round."""
_log = structlog.get_logger(__name__)


class CompactionJob:
    """Packs tails. Keeps nothing between two calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def compact(self) -> int:
        """Do one round; return how many appends were packed."""
        with self._database.read() as session:
            due = CompactionRepository(session).due(RUNS)
        packed = 0
        for run_id in due:
            with self._database.write() as session:
                if lock_run(session, run_id, patient=False) is not None:
                    packed += CompactionRepository(session).compact(run_id)
        return packed

    def run(self, stop: threading.Event, pause_seconds: float = PAUSE_SECONDS) -> None:
        """Compact until `stop` is set. A database that does not answer is waited for."""
        while not stop.wait(pause_seconds):
            try:
                self.compact()
            except Unavailable as error:
                _log.warning("compaction_failed", code=error.code, error=str(error))
