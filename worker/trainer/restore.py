"""Downloads files to this host and checks their SHA-256: checkpoints, and the demonstrations of a run.

A file that is missing or altered makes its checkpoint, or its demonstration, unusable. A store that doesn't answer says
nothing about what it holds: `StorageUnavailable` goes through.
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
    """A stored checkpoint lacks a file, or a file is not what was stored."""


class DemonstrationUnusable(Exception):
    """A stored demonstration's file is missing, or is not what was stored."""


def fetch(store: ArtifactStore, checkpoint: CheckpointRef, folder: Path) -> Path:
    """Copy a checkpoint's files to `folder` and return it.

    Raises CheckpointUnusable, StorageUnavailable, StorageFull (the folder's disk has no room).
    """
    shutil.rmtree(folder, ignore_errors=True)
    with _room(folder):
        folder.mkdir(parents=True)
        for file in checkpoint.files:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                digest = fetch_file(store, f"{checkpoint.path}/{file.name}", target)
            except ArtifactNotFound as error:
                raise CheckpointUnusable(f"{file.name} is missing from the artifact store") from error
            if digest != file.sha256:
                raise CheckpointUnusable(
                    f"{file.name} ({target.stat().st_size} bytes) has the SHA-256 {digest}, not {file.sha256} as when "
                    f"it was stored ({file.size} bytes)"
                )
    return folder


def fetch_demonstrations(
    store: ArtifactStore, demonstrations: Iterable[DemonstrationRef], folder: Path
) -> dict[str, str]:
    """Copy the files of demonstrations to `folder`; return where each lies, by its id.

    Raises DemonstrationUnusable, StorageUnavailable, StorageFull (the folder's disk has no room).
    """
    found: dict[str, str] = {}
    with _room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for demonstration in demonstrations:
            target = folder / demonstration.path.rpartition("/")[2]
            try:
                digest = fetch_file(store, demonstration.path, target)
            except ArtifactNotFound as error:
                message = f"the file of demonstration {demonstration.id} is missing from the artifact store"
                raise DemonstrationUnusable(message) from error
            if digest != demonstration.sha256:
                raise DemonstrationUnusable(
                    f"the file of demonstration {demonstration.id} has the SHA-256 {digest}, not "
                    f"{demonstration.sha256} as when it was stored"
                )
            found[demonstration.id] = str(target)
    return found


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Turn "no space left" on this host into StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise StorageFull(str(folder)) from error
