"""NVIDIA's management library, as far as a library with its functions can stand for it: `test_gpu` asks a real one."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

from tests.waiting import eventually
from worker.host.gpu_meter import GpuMeter, GpuUse
from worker.host.resources import GPU_MEMORY, GPU_UTILIZATION, ResourceMeter

SOURCE = r"""
#include <string.h>
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static int devices[3] = {0, 1, 2};
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (!strcmp(uuid, "GPU-aaaa")) { *device = &devices[0]; return 0; }
    if (!strcmp(uuid, "MIG-cccc")) { *device = &devices[2]; return 0; }
    return 6;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *found) {
    int number = *(int *)device;
    if (number == 2) return 3;
    found->gpu = number ? 75 : 25;
    found->memory = 99;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *found) {
    found->total = 80ULL << 30;
    found->used = (unsigned long long)(*(int *)device + 1) << 33;
    found->free = found->total - found->used;
    return 0;
}
"""
GIBIBYTE = 2**30


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a library with NVML's functions, of a host with two GPUs and a part of a third one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder: Path = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(SOURCE)
    built = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, folder / "nvml.c"], check=True)
    return built


@pytest.fixture
def _library(monkeypatch: pytest.MonkeyPatch, compiled: Path) -> None:
    """Let the binding find that library in place of the driver's."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(compiled)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


@pytest.mark.parametrize(
    ("gpus", "use"),
    [
        (["GPU-aaaa"], GpuUse(0.25, 8 * GIBIBYTE)),
        (["GPU-aaaa", "1"], GpuUse(0.5, 24 * GIBIBYTE)),
        (["MIG-cccc"], GpuUse(None, 24 * GIBIBYTE)),
        (["GPU-gone"], GpuUse(None, None)),
    ],
    ids=["by its UUID", "two", "a part of one", "unknown"],
)
@pytest.mark.usefixtures("_library")
def test_use_is_a_mean_over_gpus_and_memory_their_sum(gpus: list[str], use: GpuUse) -> None:
    meter = GpuMeter.open(gpus)
    assert meter is not None

    assert meter.read() == use
    meter.close()


@pytest.mark.parametrize(
    ("gpu", "use"),
    [
        ("GPU-aaaa", {GPU_UTILIZATION: 0.25, GPU_MEMORY: 8 * GIBIBYTE}),
        ("MIG-cccc", {GPU_MEMORY: 24 * GIBIBYTE}),
    ],
)
@pytest.mark.usefixtures("_library")
def test_gpus_are_measured_beside_the_trainer(gpu: str, use: dict[str, float]) -> None:
    meter = ResourceMeter([gpu])

    with meter.measuring(os.getpid()):
        eventually(lambda: meter.memory > 0)
    found = meter.take()

    assert {metric: value for metric, value in found.items() if "GPU" in metric} == use


@pytest.mark.usefixtures("_library")
def test_there_is_nothing_to_read_without_gpus() -> None:
    assert GpuMeter.open([]) is None


def test_there_is_nothing_to_read_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", raising)

    assert GpuMeter.open(["0"]) is None


def raising(name: str) -> ctypes.CDLL:
    raise OSError(f"{name}: cannot open shared object file")
