"""Measures the memory of a trainer and its collectors, and compares it with the limit."""

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

KERNEL_COUNTS: Final = tuple(
    Path(path) for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
)
"""Files with the kernel's count of out-of-memory kills: in this container (cgroup v2, v1), or on this host."""
CHECK_SECONDS = 5.0
"""Pause between two measurements."""


@dataclass(frozen=True)
class OverMemoryLimit:
    """A trainer uses more memory than it may."""

    held: int
    """Bytes."""
    limit: int
    """Bytes."""

    def __str__(self) -> str:
        return f"The trainer holds {self.held / 2**20:,.0f} MiB, and may hold {self.limit / 2**20:,.0f} MiB."


class MemoryWatch:
    """Measures a process and its descendants from time to time."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._next = 0.0

    def check(self, pid: int) -> OverMemoryLimit | None:
        """Return the excess; None without one, without a limit, or soon after the last measurement."""
        now = time.monotonic()
        if self._limit is None or now < self._next:
            return None
        self._next = now + CHECK_SECONDS
        held = held_by(pid)
        return OverMemoryLimit(held, self._limit) if held > self._limit else None


def kernel_kills() -> int:
    """Return how many processes the kernel has killed for want of memory here; 0 where it has no count."""
    total = 0
    for file in KERNEL_COUNTS:
        try:
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        except OSError:
            continue  # another kind of kernel, or no permission
        total += int(found[1]) if found else 0
    return total


def held_by(pid: int) -> int:
    """Return the resident memory of a process and its descendants, in bytes; 0 when it has ended.

    Shared pages (the arenas of experience, the libraries) are counted once, in proportion (Linux' PSS): with K
    collectors, the sum of resident sizes would count them K + 1 times.
    """
    total = 0
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        for process in [leader, *leader.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # it has ended since
                total += int(process.memory_full_info().pss)
    return total
