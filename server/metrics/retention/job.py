"""The retention of metrics: jobs that archive the metrics of ended runs and thin old points.

An archived run has its points in a Parquet file. The file is stored first, then entered in the database, and only then
the chunks are deleted, one metric after the other. So a job that is killed anywhere, or a store that does not answer,
loses nothing, and the next round goes on; any number of jobs may run. Thinning rewrites one metric in a transaction, or
writes another file beside the archived one and gives the former up: a copy of the database may name it
(`server.kit.artifacts.repository`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database
from server.kit.db.ids import new_id
from server.kit.errors import LudusError
from server.kit.jobs import Job
from server.kit.metrics_settings import MetricsSettings
from server.metrics.archive import parquet
from server.metrics.compaction.repository import CompactionRepository
from server.metrics.reader import MetricReader
from server.metrics.repository import MetricRepository
from server.metrics.retention.repository import AgedRun, Archive, MetricRetentionRepository
from server.metrics.retention.thinning import thinned
from server.runs.events.repository import lock_run

ROUND_SECONDS = 300.0
"""Pause between two rounds that find nothing to do."""
FIRST_SECONDS = 3600.0
"""Nothing is archived for so long after the start of a controller: an api of the release before, which does not know
the files, is replaced by then."""
RUNS = 50
"""Runs of one round."""
log = structlog.get_logger(__name__)


class MetricRetention:
    """Archives and thins. Keeps nothing that another one, or its own successor, would miss."""

    def __init__(self, database: Database, store: ArtifactStore, settings: MetricsSettings) -> None:
        self._database = database
        self._store = store
        self._settings = settings
        self._reader = MetricReader(database, store)
        self._seen = ""
        """Id of the last run whose points in the database were looked at for thinning."""

    def jobs(self) -> Sequence[Job]:
        """Return the jobs."""
        return (
            Job("thinning", self.thin, ROUND_SECONDS, after_seconds=ROUND_SECONDS),
            Job("archives", self.archive, ROUND_SECONDS, after_seconds=FIRST_SECONDS, again_seconds=0.0),
        )

    def archive(self) -> int:
        """Archive the next runs that are due; return how many were archived."""
        with self._database.read() as session:
            retention = MetricRetentionRepository(session)
            leftovers, due = retention.with_leftovers(), retention.to_archive(self._settings, RUNS)
        for run_id in leftovers:
            self._drop(run_id)
        return sum(map(self._archive, due))

    def thin(self) -> int:
        """Thin what is due of the next runs in the database, and of archived ones; return of how many runs."""
        with self._database.read() as session:
            retention = MetricRetentionRepository(session)
            runs = retention.to_thin(self._settings, self._seen, RUNS)
            archived = retention.archived_to_thin(self._settings, RUNS)
        self._seen = runs[-1].id if len(runs) == RUNS else ""
        count = sum(map(self._thin, runs))
        for run in archived:
            try:
                count += self._thin_archived(run)
            except LudusError as error:  # a damaged file keeps no other run from being thinned
                log.warning("metrics_not_thinned", run_id=run.id, code=error.code, error=str(error))
        return count

    def _archive(self, run: AgedRun) -> bool:
        """Move the metrics of a run to a file; return whether it was done."""
        with self._database.read() as session:
            before = MetricRetentionRepository(session).stored(run.id)
        archive = self._stored(run, self._reader.metrics(run.id))
        # Of a run that has ended nothing changes but this: another job thins its points, or archives it.
        if not self._entered(
            archive, lambda retention: not retention.archives([run.id]) and retention.stored(run.id) == before
        ):
            return False
        self._drop(run.id)
        log.info("metrics_archived", run_id=run.id, points=archive.points, bytes=archive.size)
        return True

    def _thin_archived(self, run: AgedRun) -> bool:
        """Replace the file of a run by one with fewer points; return whether it was done."""
        with self._database.read() as session:
            before = MetricRetentionRepository(session).archives([run.id])
        archive = self._stored(run, self._reader.metrics(run.id))
        return self._entered(archive, lambda retention: retention.archives([run.id]) == before)

    def _stored(self, run: AgedRun, metrics: Iterable[parquet.Metric]) -> Archive:
        """Write a Parquet file of a run's metrics, thinned as its project says, to the artifact store."""
        limit = None if run.thinned_before is None else self._settings.thinned_points
        with TemporaryDirectory(prefix="ludus-metrics-") as folder:
            file = Path(folder) / "metrics.parquet"
            points = parquet.write(file, run.id, self._thinned(run, metrics))
            path = f"{_folder(run.id)}/{new_id('met')}.parquet"
            (stored,) = self._store.publish(file, path)
        all_old = run.ended_at is not None and run.thinned_before is not None and run.ended_at <= run.thinned_before
        return Archive(run.id, path, stored.size, stored.sha256, points, limit if all_old else None)

    def _thinned(self, run: AgedRun, metrics: Iterable[parquet.Metric]) -> Iterator[parquet.Metric]:
        for behavior, key, by_attempt in metrics:
            before = -math.inf if run.thinned_before is None else run.thinned_before
            fewer = thinned(by_attempt, before, self._settings.thinned_points, again=False)
            yield behavior, key, by_attempt if fewer is None else fewer

    def _entered(self, archive: Archive, holds: Callable[[MetricRetentionRepository], bool]) -> bool:
        """Enter a stored file if a condition still holds, and give up the former one; else remove it.

        Files that no row has named are left of jobs that were killed, and go at once. A job that is about to enter one
        of them does not come to it: its condition no longer holds.
        """
        entered = False
        others = {file.path for file in self._store.files(_folder(archive.run_id))} - {archive.path}
        try:
            with self._database.write() as session:
                lock_run(session, archive.run_id)
                retention, given_up = MetricRetentionRepository(session), GivenUpFileRepository(session)
                if holds(retention):
                    for former in retention.archives([archive.run_id]):
                        given_up.give_up(former.path)
                    retention.set_archive(archive)
                    others -= given_up.among(others)
                    entered = True
        finally:
            for path in others if entered else {archive.path}:
                self._store.delete(path)
        return entered

    def _drop(self, run_id: str) -> None:
        """Delete the chunks of an archived run, one metric in a transaction."""
        more = True
        while more:
            with self._database.write() as session:
                more = MetricRetentionRepository(session).drop(run_id)

    def _thin(self, run: AgedRun) -> bool:
        """Thin the metrics of a run in the database; return whether there was one to thin."""
        limit, before = self._settings.thinned_points, run.thinned_before
        with self._database.read() as session:
            long = MetricRetentionRepository(session).long(run.id, limit)
        count = 0
        for behavior, key in long:
            with self._database.write() as session:
                retention, compaction = MetricRetentionRepository(session), CompactionRepository(session)
                if before is None or lock_run(session, run.id, patient=False) is None or retention.archives([run.id]):
                    continue
                while compaction.compact(run.id):
                    pass
                by_attempt = MetricRepository(session).by_attempt([run.id], [key], behavior)[run.id, behavior, key]
                fewer = thinned(by_attempt, before, limit, again=run.ended_at is None or run.ended_at > before)
                if fewer is not None:
                    retention.replace((run.id, behavior, key), fewer)
                    count += 1
        if count:
            log.info("metrics_thinned", run_id=run.id, metrics=count)
        return count > 0


def _folder(run_id: str) -> str:
    """Return the folder of a run's Parquet file in the artifact store. It goes with the run."""
    return f"runs/{run_id}/metrics"
