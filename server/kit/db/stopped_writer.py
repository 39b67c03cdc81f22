"""Ends a stopped process that holds SQLite's write lock.

SQLite admits one writer. A process that is stopped by a signal (SIGSTOP, Ctrl-Z) while it has the write lock blocks all
other writers until it continues; no time-out of SQLite ends that. PostgreSQL ends such a transaction by itself
(`idle_in_transaction_session_timeout`). A process that stands at a debugger's breakpoint is traced, not stopped, and is
left alone: its developer decides.

The lock is read from /proc/locks. Asking for it with `fcntl` would need the file open, and closing that would drop all
locks that this process has on it (POSIX).
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import structlog

WRITE_LOCK_BYTE = 120
"""Offset of a WAL database's write lock in the `-shm` file (https://sqlite.org/walformat.html, 2.3.1)."""
_log = structlog.get_logger(__name__)


def stopped_writer(database: Path) -> int | None:
    """Return the process that holds the write lock of an SQLite database and is stopped; None if there is none."""
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
            if first <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE) and _is_stopped(pid):
                return pid
    return None


def _is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped by a signal. Under a debugger its state is `t`, not `T` (proc(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


class StoppedWriterWatchdog:
    """Kills a process that was stopped with the write lock for too long. All that it had committed is there."""

    def __init__(self, database: Path, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`seconds` is how long a stopped process may hold the lock."""
        self._database = database
        self._seconds = seconds
        self._monotonic = monotonic
        self._seen: tuple[int, float] | None = None

    def look(self) -> int | None:
        """Look once; return the process that was killed, None if none was."""
        pid = stopped_writer(self._database)
        if pid is None:
            self._seen = None
            return None
        if self._seen is None or self._seen[0] != pid:
            self._seen = (pid, self._monotonic())
        if self._monotonic() - self._seen[1] < self._seconds:
            return None
        _log.error("stopped_writer_killed", pid=pid, seconds=self._seconds)
        os.kill(pid, signal.SIGKILL)
        self._seen = None
        return pid
