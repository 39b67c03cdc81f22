"""Brings a stored checkpoint to this host, checked: size and SHA-256 of every file, as its row says."""

import hashlib
import shutil
from pathlib import Path

from server.artifacts import ArtifactStore
from server.checkpoints.refs import CheckpointRef
from server.errors import ArtifactNotFound


class CheckpointUnusable(Exception):
    """A stored checkpoint lacks a file, or a file is not what was stored."""


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
