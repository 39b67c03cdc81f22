"""The retention jobs: they remove unneeded files from the artifact store.

Rows first, then files: a checkpoint is given up in the database, where it is no longer visible, and its files are
removed afterwards, as often as it takes. So it may be killed anywhere, and any number of jobs may work at once.

- what is given up, and what is deleted (runs, demonstrations, uploaded checkpoints, former archives of metrics): the
  files, after `LUDUS_STORAGE__PURGE_DELAY_SECONDS`;
- what is too old or too much (`LUDUS_STORAGE__RETENTION_...`): given up, every minute;
- what belongs to nothing, since a process was killed between writing files and entering them: removed every hour, when
  it has not changed for `LUDUS_STORAGE__ORPHAN_SECONDS`.
"""

import time
from collections.abc import Iterable, Sequence

import structlog

from server.checkpoints.retention.repository import Limits, RetentionRepository, by_run
from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.artifacts.store import ArtifactStore, StoredFile
from server.kit.db.database import Database
from server.kit.errors import StorageRefused
from server.kit.jobs import Job
from server.kit.settings import StorageSettings

RETENTION_SECONDS = 60.0
ORPHANS_SECONDS = 3600.0
BATCH = 50
"""Checkpoints, deleted runs, and further files that are removed in one round, of each at most."""
log = structlog.get_logger(__name__)


class Retention:
    """Cleans up. Keeps nothing that another one, or its own successor, would miss."""

    def __init__(self, database: Database, store: ArtifactStore, settings: StorageSettings) -> None:
        self._database = database
        self._store = store
        self._settings = settings

    def jobs(self) -> Sequence[Job]:
        """Return the jobs."""
        return (
            Job("purging", self.purge),
            Job("retention", lambda: len(self.retain()), RETENTION_SECONDS),
            Job("orphans", lambda: len(self.collect()), ORPHANS_SECONDS, after_seconds=ORPHANS_SECONDS),
        )

    def purge(self) -> int:
        """Remove the files of checkpoints that are given up, and of what is deleted; return of how many."""
        delay = self._settings.purge_delay_seconds
        with self._database.read() as session:
            checkpoints = RetentionRepository(session).unpurged(BATCH, delay)
            runs = RetentionRepository(session).deleted_runs(BATCH, delay)
            files = GivenUpFileRepository(session).due(BATCH, delay)
        for checkpoint_id, path in checkpoints:
            if self._remove(path):
                with self._database.write() as session:
                    RetentionRepository(session).purged(checkpoint_id)
        for run_id in runs:
            if self._remove(f"runs/{run_id}"):
                with self._database.write() as session:
                    RetentionRepository(session).run_purged(run_id)
        for path in files:
            if self._remove(path):
                with self._database.write() as session:
                    GivenUpFileRepository(session).removed(path)
        return len(checkpoints) + len(runs) + len(files)

    def _remove(self, path: str) -> bool:
        """Remove a file or a folder; return False if the store refuses this one: others may go."""
        try:
            self._store.delete(path)
        except StorageRefused as error:
            log.warning("file_not_removed", path=path, error=str(error))
            return False
        return True

    def retain(self) -> list[str]:
        """Give up what is too old or too much; return the ids."""
        limits = Limits(self._settings.retention_seconds, self._settings.retention_bytes)
        with self._database.read() as session:
            expired = RetentionRepository(session).plan(limits)
        ids: list[str] = []
        for of_run in by_run(expired):
            with self._database.write() as session:
                ids += RetentionRepository(session).retire(of_run)
        return ids

    def collect(self) -> list[str]:
        """Remove folders that no row names and that have not been written to for long; return their paths."""
        folders = orphans(self._database, self._store, self._settings.orphan_seconds)
        for folder in folders:
            self._store.delete(folder)
        swept = self._store.sweep(self._settings.orphan_seconds)
        if folders or swept:
            log.info("orphans_deleted", folders=len(folders), unfinished=swept)
        return folders


def orphans(database: Database, store: ArtifactStore, seconds: float) -> list[str]:
    """Return the folders that no row names and that have not been written to for so many seconds."""
    oldest = time.time() - seconds
    changed = dict[str, float]()
    for top in ("runs", "checkpoints", "demonstrations"):
        for folder, modified in _folders(store.files(top)):
            changed[folder] = max(modified, changed.get(folder, 0.0))
    old = [folder for folder, modified in changed.items() if modified <= oldest]
    with database.read() as session:
        return sorted(set(old) - RetentionRepository(session).known(old))


def _folders(files: Iterable[StoredFile]) -> Iterable[tuple[str, float]]:
    """Yield the folder that would have a row, of each file that belongs to one, and when the file was written."""
    for file in files:
        match file.path.split("/"):
            case ["runs", run, attempt, "checkpoints", name, _, *_]:
                yield f"runs/{run}/{attempt}/checkpoints/{name}", file.modified
            case ["checkpoints" | "demonstrations" as top, name, _, *_]:
                yield f"{top}/{name}", file.modified
