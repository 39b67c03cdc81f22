"""Compares a checkpoint's files, read completely, with the SHA-256 of their row."""

from server.checkpoints.refs import CheckpointRef
from server.kit.artifacts.store import ArtifactStore, digest_of
from server.kit.errors import ArtifactNotFound


def damage(store: ArtifactStore, checkpoint: CheckpointRef) -> list[str]:
    """Return, of each file that is not as it was stored, what is wrong with it. Raises StorageUnavailable."""
    problems = []
    for file in checkpoint.files:
        path = f"{checkpoint.path}/{file.name}"
        try:
            size = store.size(path)
            digest = digest_of(store, path) if size == file.size else ""
        except ArtifactNotFound:
            problems.append(f"{file.name} is missing")
            continue
        if size != file.size:
            problems.append(f"{file.name} has {size} bytes, not {file.size}")
        elif digest != file.sha256:
            problems.append(f"{file.name} has the SHA-256 {digest}, not {file.sha256}")
    return problems
