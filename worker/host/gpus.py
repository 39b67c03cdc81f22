"""The GPUs of a worker host: discovery, assignment to slots, and locks against other workers.

A slot's trainer sees its GPUs alone (`CUDA_VISIBLE_DEVICES`). They are named by UUID where `nvidia-smi` tells: numbers
mean different GPUs to different programs. A GPU is locked by a file for as long as a process has it: the slot, and its
trainers, which inherit the descriptor, so that the successor of a killed worker does not begin beside its leftovers.
"""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from server.kit.ports import CannotStart
from server.kit.processes import AlreadyLocked, FileLock
from worker.host.fingerprint import output_of

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
    """Return the ids of the GPUs to use: those wanted, else those of CUDA_VISIBLE_DEVICES, else all of the host.

    None where nothing is known of GPUs: then trainers look for themselves.
    """
    listed = dict(_LISTED.findall(output_of("nvidia-smi", "-L")))
    if wanted is None and (visible := os.environ.get(VISIBLE)) is not None:
        wanted = [name.strip() for name in visible.split(",") if name.strip()]
    if wanted is None:
        return list(listed.values()) if listed else None
    return [listed.get(str(name), str(name)) for name in wanted]


def assign(gpus: Sequence[str], slots: int) -> list[tuple[str, ...]]:
    """Assign GPUs to slots, evenly and in order; slots beyond their number get none."""
    share, rest = divmod(len(gpus), slots)
    dealt, begin = [], 0
    for slot in range(slots):
        end = begin + share + (slot < rest)
        dealt.append(tuple(gpus[begin:end]))
        begin = end
    return dealt


def lock_gpus(gpus: Sequence[str], owner: str) -> list[FileLock]:
    """Lock GPUs for this process and those that inherit the descriptors. Raises `GpuInUse` after some seconds."""
    locks: list[FileLock] = []
    for gpu in gpus:
        try:
            locks.append(FileLock.take(lock_path(gpu), owner, LOCK_TIMEOUT_SECONDS))
        except AlreadyLocked as error:
            _release(locks)
            raise GpuInUse(gpu, error.owner) from None
        except PermissionError:
            _release(locks)
            raise GpuInUse(gpu, "of another user") from None
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
