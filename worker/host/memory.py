"""A trainer that uses more memory than it may, and processes that the kernel has killed for want of memory."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KERNEL_COUNTS: Final = tuple(
    Path(path) for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
)
"""Files with the kernel's count of out-of-memory kills: in this container (cgroup v2, v1), or on this host."""


@dataclass(frozen=True)
class OverMemoryLimit:
    """A trainer uses more memory than it may."""

    held: int
    """Bytes."""
    limit: int
    """Bytes."""

    def __str__(self) -> str:
        return f"The trainer holds {self.held / 2**20:,.0f} MiB, and may hold {self.limit / 2**20:,.0f} MiB."


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
