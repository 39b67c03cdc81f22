"""Finds who stands still in the middle of a write to SQLite, and with it everybody else.

SQLite admits one writer. A process that is frozen (SIGSTOP, a debugger, Ctrl-Z) while it has the write lock blocks all
others for as long as it stands still; no time-out ends that. PostgreSQL ends such a transaction by itself
(`idle_in_transaction_session_timeout`).

The lock is read from /proc/locks. Asking for it with `fcntl` would need the file open, and closing that would drop all
locks that this process has on it (POSIX).
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

WRITE_LOCK_BYTE = 120
"""Where in the `-shm` file a WAL database's write lock lies (https://sqlite.org/walformat.html, 2.3.1)."""
LOOK_SECONDS = 1.0
_log = structlog.get_logger(__name__)


def frozen_writer(database: Path) -> int | None:
    """Return the process that has the write lock of an SQLite database and is stopped; None if there is none."""
    try:
        status = Path(f"{database}-shm").stat()
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks:
        # 12: POSIX  ADVISORY  WRITE 28016 fd:01:262147 120 120
        words = line.split()
        if len(words) == 8 and words[3] == "WRITE" and words[5] == file:
            pid, first, last = int(words[4]), int(words[6]), words[7]
            if first <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE) and is_stopped(pid):
                return pid
    return None


def is_stopped(pid: int) -> bool:
    """Tell whether a process stands still: stopped by a signal or by a debugger."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False


class Thaw:
    """Kills a process that has stood still with the write lock for too long. What was committed is there."""

    def __init__(
        self, database: Path, patience_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._patience = patience_seconds
        self._monotonic = monotonic
        self._seen: tuple[int, float] | None = None

    def run(self, stop: threading.Event) -> None:
        """Look once a second until `stop` is set."""
        while not stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> int | None:
        """Look once; return the process that was killed, None if none was."""
        pid = frozen_writer(self._database)
        if pid is None:
            self._seen = None
            return None
        if self._seen is None or self._seen[0] != pid:
            self._seen = (pid, self._monotonic())
        if self._monotonic() - self._seen[1] < self._patience:
            return None
        _log.error("frozen_writer_killed", pid=pid, seconds=self._patience)
        os.kill(pid, signal.SIGKILL)
        self._seen = None
        return pid
