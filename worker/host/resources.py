"""Measures what a trainer, its collectors and their GPUs use, from time to time and on a thread of its own.

The memory of a large process takes long to add up, and a GPU that has failed may never answer (calls of NVIDIA's NVML
can hang): neither may cost the attempt its lease. The trainer's helpers (processes that share its updates, compilers)
count as the trainer.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pynvml

from worker.collectors.processes import MODULE as COLLECTOR_MODULE

TRAINER_CPU, TRAINER_MEMORY = "Resources/Trainer CPU", "Resources/Trainer Memory"
COLLECTOR_CPU, COLLECTOR_MEMORY = "Resources/Collector CPU", "Resources/Collector Memory"
GPU_UTILIZATION, GPU_MEMORY = "Resources/GPU Utilization", "Resources/GPU Memory"
FIRST_SECONDS, SAMPLE_SECONDS = 0.5, 5.0
"""Pause after the first sample, which doubles up to the other one. A sample takes some milliseconds of CPU."""
CLOSE_SECONDS = 1.0
"""How long the end waits for a sample that is being taken."""
KERNEL_COUNTS: Final = tuple(
    Path(path) for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
)
"""Files with the kernel's count of out-of-memory kills: in this container (cgroup v2, v1), or on this host."""


def kernel_kills() -> int:
    """Return how many processes the kernel has killed for want of memory here; 0 where it has no count."""
    total = 0
    for file in KERNEL_COUNTS:
        try:
            count = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        except OSError:
            continue  # another kind of kernel, or no permission
        total += int(count[1]) if count else 0
    return total


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

    def read(self) -> dict[str, float]:
        """Return their present use by all processes together, by metric; not what GPUs do not tell (MIG).

        Utilization is the share of the time in which a kernel ran, 0 to 1, mean over the GPUs; memory in bytes, all.
        """
        shares, bytes_used = list[float](), list[int]()
        for device in self._devices:
            with suppress(pynvml.NVMLError):
                shares.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
            with suppress(pynvml.NVMLError):
                bytes_used.append(pynvml.nvmlDeviceGetMemoryInfo(device).used)
        use = {GPU_UTILIZATION: sum(shares) / len(shares)} if shares else {}
        return use | ({GPU_MEMORY: sum(bytes_used)} if bytes_used else {})

    def close(self) -> None:
        """Release the library."""
        pynvml.nvmlShutdown()


class ResourceMeter:
    """Samples the resources of one trainer while it lives. `take` and `memory` are safe on any thread."""

    def __init__(self, gpus: Sequence[str]) -> None:
        """`gpus`: UUIDs or numbers of those that the trainer sees; none where nothing is known of them."""
        self._gpus = gpus
        self._lock = threading.Lock()
        self._seconds = 0.0
        """Time that the CPU seconds cover."""
        self._cpu: defaultdict[str, float] = defaultdict(float)
        """CPU seconds since the last `take`, by metric."""
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        """Sum and number of the samples of everything else since the last `take`, by metric."""
        self._before: dict[psutil.Process, float] = {}
        """CPU seconds of each process until the last sample."""
        self._sampled_at = 0.0
        self._memory = 0

    @property
    def memory(self) -> int:
        """Bytes that trainer and collectors held together at the last sample; 0 before the first."""
        return self._memory

    def take(self) -> dict[str, float]:
        """Return the means since the last call by metric: CPU as cores in use, memory in bytes, GPUs as a share.

        Nothing without a sample since then. CPU takes two samples. Metrics of collectors, or of GPUs, are left out
        where there are none.
        """
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
            means = {metric: total / self._counts[metric] for metric, total in self._sums.items()}
            means |= {metric: used / seconds for metric, used in self._cpu.items()}
            for summed in (self._cpu, self._sums, self._counts):
                summed.clear()
        return means

    @contextmanager
    def measuring(self, pid: int) -> Iterator[None]:
        """Sample a process and its descendants until the end of the block."""
        ended = threading.Event()
        thread = threading.Thread(target=self._measure, args=(pid, ended), name="resources", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(CLOSE_SECONDS)

    def _measure(self, pid: int, over: threading.Event) -> None:
        gpus, pause = GpuMeter.open(self._gpus), FIRST_SECONDS
        with suppress(psutil.NoSuchProcess):
            leader = psutil.Process(pid)
            self._sample(leader, gpus)
            while not over.wait(min(pause, SAMPLE_SECONDS)):
                self._sample(leader, gpus)
                pause *= 2
        if gpus is not None:
            gpus.close()

    def _sample(self, leader: psutil.Process, gpus: GpuMeter | None) -> None:
        """Add one sample. Raises NoSuchProcess when the trainer has ended."""
        present: dict[psutil.Process, float] = {}
        cpu: defaultdict[str, float] = defaultdict(float)
        memory: defaultdict[str, float] = defaultdict(float)
        for process in [leader, *leader.children(recursive=True)]:
            with suppress(psutil.Error):  # it has ended since
                is_collector = COLLECTOR_MODULE in process.cmdline()
                # Shared pages (the arenas of experience, libraries) count once, in proportion: Linux' PSS.
                memory[COLLECTOR_MEMORY if is_collector else TRAINER_MEMORY] += process.memory_full_info().pss
                times = process.cpu_times()
                present[process] = times.user + times.system
                used = present[process] - self._before.get(process, 0.0)
                cpu[COLLECTOR_CPU if is_collector else TRAINER_CPU] += used
        sampled = memory | ({} if gpus is None else gpus.read())
        now = time.monotonic()
        with self._lock:
            if self._before:  # the first sample only says where the counters stand
                self._seconds += now - self._sampled_at
                for metric, used in cpu.items():
                    self._cpu[metric] += used
            for metric, value in sampled.items():
                self._sums[metric] += value
                self._counts[metric] += 1
            self._before, self._sampled_at = present, now
            self._memory = int(sum(memory.values()))
