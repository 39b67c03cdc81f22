"""Anonymous memory that processes of one host share by descriptors; the only module here that needs Linux.

Everybody may import it. A collector at the edge does, and calls nothing of it.
"""

import contextlib
import mmap
import os

import numpy as np
import numpy.typing as npt

with contextlib.suppress(ImportError):  # Windows
    import fcntl


def shared_memory(name: str, size: int) -> int:
    """Return the descriptor of an anonymous file of a sealed size: shrinking it would kill other processes."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def freeze(weights: npt.NDArray[np.float32]) -> int:
    """Return the descriptor of an anonymous file of weights that can't be changed any more."""
    fd = os.memfd_create("ludus-frozen-policy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    data = memoryview(weights.tobytes())
    while data:
        data = data[os.write(fd, data) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def unfreeze(fd: int) -> npt.NDArray[np.float32]:
    """Return the weights of such a file, mapped into this process, and give the descriptor back."""
    try:
        return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.float32)
    finally:
        os.close(fd)
