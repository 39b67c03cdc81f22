"""The fingerprint of an attempt: release and commit of Ludus, libraries, and the hardware of the worker's slot.

Kept with every attempt, so that two runs that differ can be compared by more than their configurations. Unknown values
are left out; no error here keeps an attempt from beginning. torch is not imported: this runs
in the slot's process, which never is.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger()

_ANSWER_SECONDS = 20.0
_CUDA = re.compile(r"^cuda\b.*=\s*'([\d.]+)'", re.MULTILINE)


def fingerprint(gpus: Sequence[str], commit: str = "") -> dict[str, Any]:
    """Describe this host to a slot that has these GPUs, by their UUIDs; without `commit` the repository is asked."""
    found: dict[str, Any] = {
        "release": version("ludus"),
        "commit": commit or _commit(Path(__file__).parents[2]),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "cuda": _cuda(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if gpus:
        known = _gpus()
        found["gpus"] = [known.get(gpu, (gpu, ""))[0] for gpu in gpus]
        found["driver"] = next((known[gpu][1] for gpu in gpus if gpu in known), None)
    return {name: value for name, value in found.items() if value}


def _commit(root: Path) -> str | None:
    """Return the commit that is checked out, with `-dirty` where files differ from it; None outside a repository."""
    if not (root / ".git").exists():
        return None
    answer = output_of("git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    return answer.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cuda() -> str | None:
    """Return the version of CUDA that torch was built for; None for a build without it."""
    try:
        text = Path(str(distribution("torch").locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except (PackageNotFoundError, OSError):
        return None
    found = _CUDA.search(text)
    return None if found is None else found[1]


def _cpu() -> str | None:
    """Return the processor's model; on machines that do not name it, its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return platform.machine() if found is None else found[1].strip()


def _gpus() -> dict[str, tuple[str, str]]:
    """Return name and driver version of the host's GPUs by their UUIDs."""
    answer = output_of("nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines()]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def output_of(*command: str) -> str:
    """Return the output of a program; nothing where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("program_failed", program=command[0], error=str(error))
        return ""
    return answer.stdout if answer.returncode == 0 else ""
