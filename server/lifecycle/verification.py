"""Compares all artifacts with the database: after a restore, or after damage to a disk."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select

from server.checkpoints.models import Checkpoint, UploadedCheckpoint
from server.checkpoints.retention import orphans
from server.demonstrations.repository import Demonstration
from server.kit.artifacts.store import ArtifactStore, digest_of
from server.kit.db.database import Database
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.kit.errors import ArtifactNotFound
from server.metrics.models import MetricArchive
from server.runs.models import DeletedRun, Log, Run
from server.simulators.recordings.repository import Recording


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file of the artifact store that a row names."""

    path: str
    size: int
    """Bytes."""
    sha256: str | None
    """None of a log: it grows while its attempt lives."""
    owner: str
    """The resource that it belongs to, for people."""


class NamedFileRepository(Repository):
    """Files of checkpoints, uploads, demonstrations, recordings, archives of metrics and logs."""

    def all(self) -> Iterator[NamedFile]:
        """Yield every file that must be there: none of what is given up, or deleted."""
        execute = self._session.execute
        stored = select(Checkpoint.id, Checkpoint.run_id, Checkpoint.path, Checkpoint.files)
        for row in execute(stored.where(Checkpoint.deleted_at.is_(None)).order_by(Checkpoint.id)):
            for file in row.files:
                owner = f"checkpoint {row.id} of run {row.run_id}"
                yield NamedFile(f"{row.path}/{file['name']}", file["size"], file["sha256"], owner)
        for upload in self._session.scalars(select(UploadedCheckpoint)):
            path = f"{upload.path}/{upload.file}"
            yield NamedFile(path, upload.size, upload.sha256, f"uploaded checkpoint {upload.id}")
        demonstrations = select(Demonstration.id, Demonstration.path, Demonstration.size, Demonstration.sha256)
        for shown in execute(demonstrations):
            yield NamedFile(shown.path, shown.size, shown.sha256, f"demonstration {shown.id}")
        archives = select(MetricArchive.run_id, MetricArchive.path, MetricArchive.size, MetricArchive.sha256)
        for archive in execute(archives):
            yield NamedFile(archive.path, archive.size, archive.sha256, f"metrics of run {archive.run_id}")
        recordings = select(Recording.id, Recording.path, Recording.size, Recording.sha256)
        for recording in execute(recordings):
            yield NamedFile(recording.path, recording.size, recording.sha256, f"recording {recording.id}")
        for log in execute(select(Log.run_id, Log.attempt, Log.name, Log.path, Log.size)):
            owner = f"{log.name} of attempt {log.attempt} of run {log.run_id}"
            yield NamedFile(log.path, log.size, None, owner)

    def unknown_runs(self, ids: Collection[str]) -> set[str]:
        """Return those of these ids that belong to no run, nor to a deleted one."""
        unknown = set(ids)
        for part in parts(sorted(ids)):
            unknown -= set(self._session.scalars(select(Run.id).where(Run.id.in_(part))))
            unknown -= set(self._session.scalars(select(DeletedRun.id).where(DeletedRun.id.in_(part))))
        return unknown


class Fault(StrEnum):
    """A difference between the artifact store and the database."""

    MISSING = "missing"
    DAMAGED = "damaged"
    ORPHANED = "orphaned"
    """In the store, and no row names it."""


@dataclass(frozen=True)
class Difference:
    """One difference."""

    fault: Fault
    path: str
    """Of a file, or of an orphaned folder, in the store."""
    owner: str | None
    """The resource that the file belongs to; None of an orphan."""
    detail: str


def verify(database: Database, store: ArtifactStore, *, quick: bool) -> Iterator[Difference]:
    """Yield every difference. With `quick`, files are compared by their sizes alone and not read.

    Raises DatabaseUnavailable, StorageUnavailable, StorageRefused. What is given up meanwhile is no difference.
    """
    for file in _named(database):
        difference = _compare(store, file, quick=quick)
        if difference is not None and file in set(_named(database)):
            yield difference
    for folder in orphans(database, store, -math.inf):
        yield Difference(Fault.ORPHANED, folder, None, "no row names this folder")
    runs = {file.path.split("/")[1] for file in store.files("runs")}
    with database.read() as session:
        unknown = NamedFileRepository(session).unknown_runs(runs)
    for run_id in sorted(unknown):
        yield Difference(Fault.ORPHANED, f"runs/{run_id}", None, "there is no such run")


def _named(database: Database) -> list[NamedFile]:
    with database.read() as session:
        return list(NamedFileRepository(session).all())


def _compare(store: ArtifactStore, file: NamedFile, *, quick: bool) -> Difference | None:
    try:
        size = store.size(file.path)
        if size < file.size or (size != file.size and file.sha256 is not None):
            return Difference(Fault.DAMAGED, file.path, file.owner, f"it has {size} bytes, not {file.size}")
        if quick or file.sha256 is None:
            return None
        digest = digest_of(store, file.path)
    except ArtifactNotFound:
        return Difference(Fault.MISSING, file.path, file.owner, "the store has no such file")
    if digest == file.sha256:
        return None
    return Difference(Fault.DAMAGED, file.path, file.owner, f"its SHA-256 is {digest}, not {file.sha256}")
