"""A process that hangs in the middle of a publication: `python -m ... STORE SOURCE PATH`."""

import os
import signal
import sys
from pathlib import Path

from server.kit.artifacts.folder import FolderStore


def hang(descriptor: int) -> None:
    """Stand in for a disk that takes forever."""
    print("in the middle", flush=True)  # noqa: T201
    signal.pause()


if __name__ == "__main__":
    os.fsync = hang
    store, source, path = sys.argv[1:]
    FolderStore(Path(store)).publish(Path(source), path)
