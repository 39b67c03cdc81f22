"""Compares all artifacts with the database: after a restore, or after damage to a disk."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from server.checkpoints.retention.job import orphans
from server.kit.artifacts.store import ArtifactStore, digest_of
from server.kit.db.database import Database
from server.kit.errors import ArtifactNotFound
from server.lifecycle.verification.repository import NamedFile, NamedFileRepository


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
