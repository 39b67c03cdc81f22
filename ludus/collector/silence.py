"""Silence: the time in which a process that should send a message every second has sent none, although it could have.

On a busy machine a healthy collector may get no processor for a while, or wait for its memory to be paged in; and the
trainer that listens may not run itself. None of that is the silence of a process that has frozen.
"""

import psutil

LOOK_SECONDS = 1.0
"""How often the process is measured while it is silent."""
LONGEST_LOOK_SECONDS = 2 * LOOK_SECONDS
"""More time between two looks is not counted: the process that looks did not run meanwhile."""
_WANTS_TO_RUN = {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP}
"""States of a process that waits for a processor, or for memory or files from a disk."""


class Silence:
    """Of one process. All times are of the same monotonic clock."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._looked = now
        self._processor_seconds: float | None = None
        """Processor time that it had used at the last look; None before the first one of a silence."""
        self.total = 0.0
        """Seconds without a message."""
        self.idle = 0.0
        """Those of them in which it neither used nor wanted a processor."""

    def heard(self, now: float) -> None:
        """Record a sign of life."""
        self._looked = now
        self._processor_seconds = None
        self.total = self.idle = 0.0

    def look(self, now: float) -> None:
        """Count the time since the last look, if it is time to look again."""
        if now - self._looked < LOOK_SECONDS:
            return
        elapsed = min(now - self._looked, LONGEST_LOOK_SECONDS)
        self._looked = now
        self.total += elapsed
        try:
            process = psutil.Process(self._pid)
            times, status = process.cpu_times(), process.status()
        except psutil.NoSuchProcess:
            return  # the end of its channel says so
        used = times.user + times.system
        if used == self._processor_seconds and status not in _WANTS_TO_RUN:
            self.idle += elapsed
        self._processor_seconds = used
