"""The folders in which attempts keep their files, on the worker's host. Each is removed with its attempt or soon after.

An attempt holds a lock on its folder, which the kernel releases when the process ends, in whatever way. So a folder
that can be locked is not in use. On a file system without locks no folder is swept.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = re.compile(r"run_[0-9A-Za-z]+-[0-9]+")
"""Names of attempts' folders: run and attempt number. Others may lie beside them."""


class Scratch:
    """The folder of one attempt, from its beginning to its end. One thread uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    def make(self) -> None:
        """Create the folder and lock it against `sweep`. Raises OSError."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _sweeping_waits(self.folder.parent):
            self.folder.mkdir(exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder, and release the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(root: Path) -> list[str]:
    """Remove the folders of attempts whose process was killed; return their names."""
    swept = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if not FOLDER.fullmatch(folder.name):
            continue
        with contextlib.suppress(OSError):  # it is in use, or another process was faster
            lock = os.open(folder, os.O_RDONLY)
            try:
                with _sweeping_waits(root):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder.name)
            finally:
                os.close(lock)
    return swept


@contextlib.contextmanager
def _sweeping_waits(root: Path) -> Iterator[None]:
    """Exclude other sweeps and creations: a folder that is made and not yet locked looks unused."""
    lock = os.open(root, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
