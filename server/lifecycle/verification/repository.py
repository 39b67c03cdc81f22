"""Which files the database names, and which folders of the store it knows."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import select

from server.checkpoints.models import Checkpoint, UploadedCheckpoint
from server.demonstrations.models import Demonstration
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.metrics.models import MetricArchive
from server.runs.models import DeletedRun, Log, Run


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
    """Files of checkpoints, uploads, demonstrations, archives of metrics and logs."""

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
        for log in execute(select(Log.run_id, Log.attempt, Log.name, Log.path, Log.size)):
            owner = f"{log.name} of attempt {log.attempt} of run {log.run_id}"
            yield NamedFile(log.path, log.size, None, owner)

    def unknown_runs(self, ids: Collection[str]) -> set[str]:
        """Return those of these ids that belong to no run, nor to a deleted one."""
        unknown = set(ids)
        for some in parts(sorted(ids)):
            unknown -= set(self._session.scalars(select(Run.id).where(Run.id.in_(some))))
            unknown -= set(self._session.scalars(select(DeletedRun.id).where(DeletedRun.id.in_(some))))
        return unknown
