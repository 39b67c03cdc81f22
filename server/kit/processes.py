"""File locks, and how all descendants of one `ludus up` are found and ended.

`ludus up` must leave nothing behind, however it ends. Process groups alone don't give that: a trainer leads a group of
its own so that a signal to the worker doesn't reach it. So everything that `ludus up` starts inherits a mark in its
environment, and what carries the mark can be found and ended (`sweep`).
"""

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Self

MARK = "LUDUS_STACK_ID"
"""Environment variable that everything below one `ludus up` carries."""

_SWEEP_SECONDS = 10.0


def marked(mark: str) -> list[int]:
    """Return the live processes, other than this one, that were started with `LUDUS_STACK_ID` = `mark`."""
    needle = f"{MARK}={mark}".encode()
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            # A zombie's environment is empty: the dead are not counted.
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                processes.append(int(entry.name))
        except OSError:  # it ended meanwhile, or it is another user's
            continue
    return processes


def sweep(mark: str) -> int:
    """Kill everything that carries the mark, until nothing does; return how many processes it took.

    Processes may be starting others while we look, so one pass is not enough.
    """
    deadline = time.monotonic() + _SWEEP_SECONDS
    ended: set[int] = set()
    while running := marked(mark):
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        ended.update(running)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return len(ended)


class AlreadyLocked(Exception):
    """Another process holds the lock; `owner` is what it wrote into the file."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(f"{path} is locked by {owner or 'another process'}")
        self.path = path
        self.owner = owner


class FileLock:
    """An exclusive lock on a file for as long as a process lives that has the descriptor open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        """Pass it on to a child, and the lock is held until that child is gone too."""

    @classmethod
    def take(cls, path: Path, owner: str, connect_timeout_seconds: float = 0.0) -> Self:
        """Lock `path` and write `owner` into it. Raises `AlreadyLocked` after `connect_timeout_seconds`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + connect_timeout_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    os.close(descriptor)
                    raise AlreadyLocked(path, holder) from None
                time.sleep(0.05)
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{owner}\n".encode(), 0)
                return cls(path, descriptor)

    def release(self) -> None:
        """Give the lock up, as far as this process holds it."""
        os.close(self.descriptor)
