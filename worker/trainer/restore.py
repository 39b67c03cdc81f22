"""Downloads files to this host and checks their SHA-256: checkpoints, and the demonstrations of a run.

A file that is missing or altered makes its checkpoint, or its demonstration, unusable. A store that doesn't answer says
nothing about its files: `StorageUnavailable` goes through.
"""

import errno
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from server.checkpoints.refs import CheckpointRef
from server.demonstrations.refs import DemonstrationRef
from server.kit.artifacts.store import ArtifactStore
from server.kit.artifacts.store import fetch as fetch_file
from server.kit.errors import ArtifactNotFound, StorageFull


class CheckpointUnusable(Exception):
    """A stored checkpoint lacks a file, or a file was altered."""


class DemonstrationUnusable(Exception):
    """A stored demonstration's file is missing, or was altered."""


def fetch(store: ArtifactStore, checkpoint: CheckpointRef, folder: Path) -> Path:
    """Copy a checkpoint's files to `folder` and return it.

    Raises CheckpointUnusable, StorageUnavailable, StorageFull (the folder's disk has no room).
    """
    shutil.rmtree(folder, ignore_errors=True)
    with _room(folder):
        for file in checkpoint.files:
            target = folder / file.name
            if problem := _fetched(store, f"{checkpoint.path}/{file.name}", target, file.sha256):
                size = f" ({target.stat().st_size} bytes)" if target.exists() else ""
                raise CheckpointUnusable(f"{file.name}{size} {problem}")
    return folder


def fetch_demonstrations(
    store: ArtifactStore, demonstrations: Iterable[DemonstrationRef], folder: Path
) -> dict[str, str]:
    """Copy the files of demonstrations to `folder`; return where each lies, by its id.

    Raises DemonstrationUnusable, StorageUnavailable, StorageFull (the folder's disk has no room).
    """
    found: dict[str, str] = {}
    with _room(folder):
        for demonstration in demonstrations:
            target = folder / demonstration.path.rpartition("/")[2]
            if problem := _fetched(store, demonstration.path, target, demonstration.sha256):
                raise DemonstrationUnusable(f"the file of demonstration {demonstration.label} {problem}")
            found[demonstration.id] = str(target)
    return found


def _fetched(store: ArtifactStore, path: str, target: Path, sha256: str) -> str | None:
    """Copy a file; return the problem with it, None if it is as it was stored."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest = fetch_file(store, path, target)
    except ArtifactNotFound:
        return "is missing from the artifact store"
    if digest == sha256:
        return None
    return f"has the SHA-256 {digest}, not {sha256} as when it was stored"


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Turn "no space left" on this host into StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise StorageFull(str(folder)) from error
