"""Use and memory of GPUs, from NVIDIA's management library (NVML), which comes with the driver.

`ctypes` calls its C functions: that takes no CUDA context and no further package. The structures and functions here
have not changed since their first version (NVIDIA's "NVML API Reference", `nvmlDeviceGetUtilizationRates`,
`nvmlDeviceGetMemoryInfo`). Calls can hang where a GPU has failed, so they belong on a thread of their own.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

LIBRARY = "libnvidia-ml.so.1"
SUCCESS: Final = 0


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the last sample period, at most a second."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class GpuUse:
    """Present use of some GPUs, by all processes together."""

    utilization: float | None
    """Share of the time in which a kernel ran, 0 to 1, mean over the GPUs; None where they do not tell (MIG)."""
    memory: int | None
    """Bytes, of all of them; None where they do not tell."""


class GpuMeter:
    """Reads some GPUs. One thread uses it."""

    def __init__(self, nvml: ctypes.CDLL, devices: Sequence[ctypes.c_void_p]) -> None:
        self._nvml = nvml
        self._devices = devices

    @classmethod
    def open(cls, gpus: Sequence[str]) -> Self | None:
        """Find GPUs by their UUIDs or numbers; None without any, and on a host without the library."""
        if not gpus:
            return None
        try:
            nvml = ctypes.CDLL(LIBRARY)
        except OSError:
            return None
        if nvml.nvmlInit_v2() != SUCCESS:
            return None
        devices = [device for gpu in gpus if (device := _device(nvml, gpu)) is not None]
        return cls(nvml, devices)

    def read(self) -> GpuUse:
        """Return the present use."""
        utilization, memory = _Utilization(), _Memory()
        shares, used = list[float](), list[int]()
        for device in self._devices:
            if self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization)) == SUCCESS:
                shares.append(utilization.gpu / 100)
            if self._nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == SUCCESS:
                used.append(memory.used)
        return GpuUse(sum(shares) / len(shares) if shares else None, sum(used) if used else None)

    def close(self) -> None:
        """Release the library."""
        self._nvml.nvmlShutdown()


def _device(nvml: ctypes.CDLL, gpu: str) -> ctypes.c_void_p | None:
    """Return NVML's handle of a GPU, None if it knows no such GPU."""
    device = ctypes.c_void_p()
    if gpu.isdecimal():
        status = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(gpu)), ctypes.byref(device))
    else:
        status = nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device))
    return device if status == SUCCESS else None
