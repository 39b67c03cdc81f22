"""Brings what is stored to this host, checked by its SHA-256: checkpoints, and the demonstrations of a run."""

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from server.artifacts import ArtifactStore
from server.checkpoints.refs import CheckpointRef
from server.demonstrations.refs import DemonstrationRef
from server.errors import ArtifactNotFound


class CheckpointUnusable(Exception):
    """A stored checkpoint lacks a file, or a file is not what was stored."""


class DemonstrationUnusable(Exception):
    """A stored demonstration's file is missing, or is not what was stored."""


def fetch(store: ArtifactStore, checkpoint: CheckpointRef, folder: Path) -> Path:
    """Copy a checkpoint's files to `folder` and return it. Raises CheckpointUnusable."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in checkpoint.files:
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(store.path_of(f"{checkpoint.path}/{file.name}"), target)
        except ArtifactNotFound as error:
            raise CheckpointUnusable(f"{file.name} is missing from the artifact store") from error
        with target.open("rb") as copy:
            digest = hashlib.file_digest(copy, "sha256").hexdigest()
        if digest != file.sha256:
            raise CheckpointUnusable(f"{file.name} has the SHA-256 {digest}, not {file.sha256} as when it was stored")
    return folder


def fetch_demonstrations(
    store: ArtifactStore, demonstrations: Iterable[DemonstrationRef], folder: Path
) -> dict[str, str]:
    """Copy the files of demonstrations to `folder`; return where each lies, by its id. Raises DemonstrationUnusable."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, str] = {}
    for demonstration in demonstrations:
        target = folder / demonstration.path.rpartition("/")[2]
        try:
            shutil.copyfile(store.path_of(demonstration.path), target)
        except ArtifactNotFound as error:
            message = f"the file of demonstration {demonstration.id} is missing from the artifact store"
            raise DemonstrationUnusable(message) from error
        with target.open("rb") as copy:
            digest = hashlib.file_digest(copy, "sha256").hexdigest()
        if digest != demonstration.sha256:
            raise DemonstrationUnusable(
                f"the file of demonstration {demonstration.id} has the SHA-256 {digest}, not {demonstration.sha256} as "
                "when it was stored"
            )
        found[demonstration.id] = str(target)
    return found
