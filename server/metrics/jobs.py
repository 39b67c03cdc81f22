"""The jobs of metrics: tails of runs are packed, metrics of ended runs move to files, old points are thinned.

Packing is one short transaction for each run, under the run's lock; a run that is busy comes in the next round. So any
number of processes may do this, and one that is killed anywhere leaves the tail as it was, or packed.

An archived run has its points in a Parquet file. The file is stored first, then entered in the database, and only then
the chunks are deleted, one metric after the other. So a job that is killed anywhere, or a store that does not answer,
loses nothing, and the next round goes on; any number of jobs may run. Thinning rewrites one metric in a transaction, or
writes another file beside the archived one and gives the former up: a copy of the database may name it
(`server.kit.artifacts.repository`).
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database, Session
from server.kit.db.ids import new_id
from server.kit.errors import LudusError
from server.kit.jobs import Job, handle_rows
from server.kit.settings import MetricsSettings
from server.metrics import parquet
from server.metrics.models import MetricArchive
from server.metrics.points import thinned
from server.metrics.reader import MetricReader
from server.metrics.repository import AgedRun, MetricRepository, MetricRetentionRepository, PackingRepository
from server.runs.events.repository import lock_run

ROUND_SECONDS = 300.0
"""Pause between two rounds that find nothing to do."""
FIRST_SECONDS = 3600.0
"""Nothing is archived for so long after the start of a controller: an api of the release before, which does not know
the files, is replaced by then."""
RUNS = 50
"""Runs of one round."""
PACKED_RUNS = 200
"""Runs whose tails are packed in one round."""
log = structlog.get_logger(__name__)


def packing_job(database: Database) -> Job:
    """Make the job that packs the tails of runs."""

    def due(session: Session) -> Sequence[str]:
        return PackingRepository(session).due(PACKED_RUNS)

    def pack(session: Session, run_id: str) -> int:
        return 0 if lock_run(session, run_id, patient=False) is None else PackingRepository(session).pack(run_id)

    return Job("compaction", lambda: handle_rows(database, due, pack))


class MetricRetention:
    """Archives and thins. Keeps nothing that another one, or its own successor, would miss."""

    def __init__(self, database: Database, store: ArtifactStore, settings: MetricsSettings) -> None:
        self._database = database
        self._store = store
        self._settings = settings
        self._reader = MetricReader(database, store)
        self._looked_at = ""
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
            runs = retention.to_thin(self._settings, self._looked_at, RUNS)
            archived = retention.archived_to_thin(self._settings, RUNS)
        self._looked_at = runs[-1].id if len(runs) == RUNS else ""
        count = sum(map(self._thin, runs))
        for run in archived:
            try:
                count += self._archive(run)
            except LudusError as error:  # a damaged file keeps no other run from being thinned
                log.warning("metrics_not_thinned", run_id=run.id, code=error.code, error=str(error))
        return count

    def _archive(self, run: AgedRun) -> bool:
        """Write the points of a run to a file, in place of those in the database or in a former file; return whether it
        was done.

        Files that no row has named are left of jobs that were killed, and go at once. A job that is about to enter one
        of them does not come to it: the points are no longer where it read them.
        """
        with self._database.read() as session:
            before = MetricRetentionRepository(session).stored(run.id)
        archive = self._stored(run)
        entered = False
        unnamed = {file.path for file in self._store.files(_folder(run.id))} - {archive.path}
        try:
            with self._database.write() as session:
                lock_run(session, run.id)
                retention, given_up = MetricRetentionRepository(session), GivenUpFileRepository(session)
                # Of a run that has ended nothing changes but this: another job thins its points, or archives it.
                if retention.stored(run.id) == before:
                    for former in retention.archives([run.id]):
                        given_up.give_up(former.path)
                    retention.set_archive(archive)
                    unnamed -= given_up.among(unnamed)
                    entered = True
        finally:
            for path in unnamed if entered else {archive.path}:
                self._store.delete(path)
        if entered:
            self._drop(run.id)
            log.info("metrics_archived", run_id=run.id, points=archive.points, bytes=archive.size)
        return entered

    def _stored(self, run: AgedRun) -> MetricArchive:
        """Write a Parquet file of a run's metrics, thinned as its project says, to the artifact store."""
        before = -math.inf if run.thinned_before is None else run.thinned_before
        limit = self._settings.thinned_points

        def metrics() -> Iterator[parquet.Metric]:
            for behavior, key, by_attempt in self._reader.metrics(run.id):
                fewer = thinned(by_attempt, before, limit, again=False)
                yield behavior, key, by_attempt if fewer is None else fewer

        with TemporaryDirectory(prefix="ludus-metrics-") as folder:
            file = Path(folder) / "metrics.parquet"
            points = parquet.write(file, run.id, metrics())
            path = f"{_folder(run.id)}/{new_id('met')}.parquet"
            (stored,) = self._store.publish(file, path)
        is_old = run.ended_at is not None and run.ended_at <= before
        return MetricArchive(
            run_id=run.id,
            path=path,
            size=stored.size,
            sha256=stored.sha256,
            points=points,
            thinned_to=limit if is_old else None,
        )

    def _drop(self, run_id: str) -> None:
        """Delete the chunks of an archived run, one metric in a transaction."""
        has_more = True
        while has_more:
            with self._database.write() as session:
                has_more = MetricRetentionRepository(session).drop(run_id)

    def _thin(self, run: AgedRun) -> bool:
        """Thin the metrics of a run in the database; return whether there was one to thin."""
        limit, before = self._settings.thinned_points, run.thinned_before
        with self._database.read() as session:
            long = MetricRetentionRepository(session).long(run.id, limit)
        count = 0
        for behavior, key in long:
            with self._database.write() as session:
                retention, packing = MetricRetentionRepository(session), PackingRepository(session)
                if before is None or lock_run(session, run.id, patient=False) is None or retention.archives([run.id]):
                    continue
                while packing.pack(run.id):
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
