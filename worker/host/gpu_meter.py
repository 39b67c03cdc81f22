"""Use and memory of GPUs, from NVIDIA's management library (NVML), which comes with the driver.

Its calls take no CUDA context. They can hang where a GPU has failed, so they belong on a thread of their own.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import pynvml


@dataclass(frozen=True)
class GpuUse:
    """Present use of some GPUs, by all processes together."""

    utilization: float | None
    """Share of the time in which a kernel ran, 0 to 1, mean over the GPUs; None where they do not tell (MIG)."""
    memory: int | None
    """Bytes, of all of them; None where they do not tell."""


class GpuMeter:
    """Reads some GPUs. One thread uses it."""

    def __init__(self, devices: Sequence[Any]) -> None:
        """Take NVML's handles of the GPUs."""
        self._devices = devices

    @classmethod
    def open(cls, gpus: Sequence[str]) -> Self | None:
        """Find GPUs by their UUIDs or numbers; None without any, and on a host without the library."""
        if not gpus:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        devices = []
        for gpu in gpus:
            by_number = gpu.isdecimal()
            with suppress(pynvml.NVMLError):  # a GPU that the driver does not know
                devices.append(
                    pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if by_number else pynvml.nvmlDeviceGetHandleByUUID(gpu)
                )
        return cls(devices)

    def read(self) -> GpuUse:
        """Return the present use."""
        shares, bytes_used = list[float](), list[int]()
        for device in self._devices:
            with suppress(pynvml.NVMLError):
                shares.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
            with suppress(pynvml.NVMLError):
                bytes_used.append(pynvml.nvmlDeviceGetMemoryInfo(device).used)
        return GpuUse(sum(shares) / len(shares) if shares else None, sum(bytes_used) if bytes_used else None)

    def close(self) -> None:
        """Release the library."""
        pynvml.nvmlShutdown()
