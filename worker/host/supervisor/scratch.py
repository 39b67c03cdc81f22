"""The folders in which attempts keep their files, on the worker's host: none outlives its attempt for long.

An attempt holds a lock on its folder, which the kernel lets go of when the process ends, however that ends. So whoever
can lock a folder knows that nobody uses it any more. Where a file system has no locks, nothing is swept.
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
"""Names of attempts' folders: run and epoch. Others may lie beside them."""


class Scratch:
    """The folder of one attempt, from its beginning to its end. One thread uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    def make(self) -> None:
        """Make the folder, and keep it from being swept. Raises OSError."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _sweeping_waits(self.folder.parent):
            self.folder.mkdir(exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Leave nothing behind."""
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
        with contextlib.suppress(OSError):  # somebody uses it, or was faster
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
    """Keep others from looking whether a folder is in use while it is made and not yet locked."""
    lock = os.open(root, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
