"""The GPUs of a worker host, with locks against other workers; and the fingerprint of an attempt.

A slot's trainer sees its GPUs alone (`CUDA_VISIBLE_DEVICES`). They are named by UUID where `nvidia-smi` tells: numbers
mean different GPUs to different programs. A GPU is locked by a file for as long as a process has it: the slot, and its
trainers, which inherit the descriptor, so that the successor of a killed worker does not begin beside its leftovers.

The fingerprint is kept with every attempt, so that two runs that differ can be compared by more than their
configurations: release and commit of Ludus, libraries, hardware. Unknown values are left out; no error here keeps an
attempt from beginning. torch is not imported: this runs in the slot's process, which never does.
"""

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import structlog

from ludus.plugins import added
from server.kit.ports import CannotStart
from server.kit.processes import AlreadyLocked, FileLock

log = structlog.get_logger()

_ANSWER_SECONDS = 20.0
_CUDA = re.compile(r"^cuda\b.*=\s*'([\d.]+)'", re.MULTILINE)


def fingerprint(gpus: Sequence[str], commit: str = "") -> dict[str, Any]:
    """Describe this host to a slot that has these GPUs, by their UUIDs; without `commit` the repository is asked."""
    facts: dict[str, Any] = {
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
        "plugins": [f"{plugin.label} of {plugin.package} {plugin.version}" for plugin in added()],
    }
    if gpus:
        devices = _gpus()
        facts["gpus"] = [devices.get(gpu, (gpu, ""))[0] for gpu in gpus]
        facts["driver"] = next((devices[gpu][1] for gpu in gpus if gpu in devices), None)
    return {name: value for name, value in facts.items() if value}


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
    match = _CUDA.search(text)
    return None if match is None else match[1]


def _cpu() -> str | None:
    """Return the processor's model; on machines that do not name it, its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return platform.machine() if match is None else match[1].strip()


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


VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCK_TIMEOUT_SECONDS = 10.0
"""How long a slot waits for a GPU that its predecessor's trainer still holds."""
_LISTED = re.compile(r"^GPU (\d+): .*\(UUID: ([^)]+)\)", re.MULTILINE)


class GpuInUse(CannotStart):
    """Another worker of this host has a GPU."""

    def __init__(self, gpu: str, owner: str) -> None:
        super().__init__(
            f"GPU {gpu} is used by another worker of this host ({owner or 'unknown'}): name other ones in "
            "LUDUS_WORKER__GPUS, or let workers share with LUDUS_WORKER__SHARE_GPUS=true."
        )


def find_gpus(wanted: Sequence[int | str] | None) -> list[str] | None:
    """Return those wanted, else those of CUDA_VISIBLE_DEVICES, else all; None: trainers look for themselves."""
    listed = dict(_LISTED.findall(output_of("nvidia-smi", "-L")))
    names = wanted
    if names is None and (visible := os.environ.get(VISIBLE)) is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
    if names is None:
        return list(listed.values()) if listed else None
    return [listed.get(str(name), str(name)) for name in names]


def assign(gpus: Sequence[str], slots: int) -> list[tuple[str, ...]]:
    """Assign GPUs to slots, evenly and in order; slots beyond their number get none."""
    share, surplus = divmod(len(gpus), slots)
    dealt, begin = [], 0
    for slot in range(slots):
        end = begin + share + (slot < surplus)
        dealt.append(tuple(gpus[begin:end]))
        begin = end
    return dealt


def lock_gpus(gpus: Sequence[str], owner: str) -> list[FileLock]:
    """Lock GPUs for this process and those that inherit the descriptors. Raises `GpuInUse` after some seconds."""
    locks: list[FileLock] = []
    for gpu in gpus:
        try:
            locks.append(FileLock.take(lock_path(gpu), owner, LOCK_TIMEOUT_SECONDS))
        except (AlreadyLocked, PermissionError) as error:
            _release(locks)
            raise GpuInUse(gpu, error.owner if isinstance(error, AlreadyLocked) else "of another user") from None
    return locks


def check_free(gpus: Sequence[str]) -> None:
    """Raise `GpuInUse` before anything is started, where a GPU is locked."""
    _release(lock_gpus(gpus, f"process {os.getpid()}, which starts"))


def lock_path(gpu: str) -> Path:
    """Return the file that stands for a GPU on this host."""
    return Path(tempfile.gettempdir()) / "ludus-gpus" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', gpu)}.lock"


def _release(locks: Sequence[FileLock]) -> None:
    for lock in locks:
        lock.release()
