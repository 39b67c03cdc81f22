"""The resources of a trainer and its collectors, measured on real processes."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pynvml
import pytest

from tests.waiting import eventually
from worker.collectors.processes import MODULE
from worker.host import resources
from worker.host.resources import (
    COLLECTOR_CPU,
    COLLECTOR_MEMORY,
    GPU_MEMORY,
    GPU_UTILIZATION,
    TRAINER_CPU,
    TRAINER_MEMORY,
    GpuMeter,
    ResourceMeter,
)

MEBIBYTE = 2**20
BUSY = "while True: pass"
IDLE = "import sys; sys.stdin.read()"
HOLDS = f"held = bytearray(b'x') * (64 << 20); {IDLE}"


@pytest.fixture(autouse=True)
def _quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "SAMPLE_SECONDS", 0.05)


@pytest.fixture
def trainer(request: pytest.FixtureRequest) -> Iterator[psutil.Process]:
    """A process that runs a program, and has a child that runs another one under the name of a collector."""
    own, collector = request.param
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {collector!r}, {MODULE!r}])\n{own}"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    found = psutil.Process(process.pid)
    yield found
    for each in [*found.children(), process]:
        each.kill()
    process.communicate()


def seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.long
@pytest.mark.parametrize("trainer", [(BUSY, BUSY)], indirect=True)
def test_cpu_is_in_cores_of_the_trainer_and_of_its_collectors_apart(trainer: psutil.Process) -> None:
    (collector,) = eventually(trainer.children, "it has its child")
    meter = ResourceMeter([])

    with meter.measuring(trainer.pid):
        eventually(lambda: meter.memory > 0, "the first sample")
        begun = [seconds(process) for process in (trainer, collector)]
        meter.take()
        for process, before in zip((trainer, collector), begun, strict=True):
            eventually(lambda process=process, before=before: seconds(process) > before + 0.5)
        means = meter.take()

    assert means.keys() == {TRAINER_CPU, COLLECTOR_CPU, TRAINER_MEMORY, COLLECTOR_MEMORY}
    assert 0.0 < means[TRAINER_CPU] < 1.5, "at most 1, but for the ticks of the clock"
    assert 0.0 < means[COLLECTOR_CPU] < 1.5


@pytest.mark.parametrize("trainer", [(IDLE, HOLDS)], indirect=True)
def test_memory_is_counted_where_it_is_held_and_an_idle_process_uses_no_cpu(trainer: psutil.Process) -> None:
    meter = ResourceMeter([])

    def idle() -> dict[str, float] | None:
        taken = meter.take()
        return taken if taken.get(COLLECTOR_CPU) == taken.get(TRAINER_CPU) == 0.0 else None

    with meter.measuring(trainer.pid):
        eventually(lambda: meter.memory > 64 * MEBIBYTE, "the collector has its memory")
        means = eventually(idle, "both wait for input")

    assert means[COLLECTOR_MEMORY] > 64 * MEBIBYTE > means[TRAINER_MEMORY] > MEBIBYTE
    assert meter.memory == pytest.approx(means[TRAINER_MEMORY] + means[COLLECTOR_MEMORY], rel=0.05)


def test_what_was_taken_is_not_taken_again_and_a_process_that_has_ended_has_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    meter = ResourceMeter([])

    with meter.measuring(process.pid):
        eventually(lambda: meter.memory > 0)
    assert meter.take().keys() >= {TRAINER_MEMORY}
    assert meter.take() == {}

    process.communicate()
    ended = ResourceMeter([])
    with ended.measuring(process.pid):
        pass
    assert (ended.take(), ended.memory) == ({}, 0)


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
        (["GPU-aaaa"], {GPU_UTILIZATION: 0.25, GPU_MEMORY: 8 * GIBIBYTE}),
        (["GPU-aaaa", "1"], {GPU_UTILIZATION: 0.5, GPU_MEMORY: 24 * GIBIBYTE}),
        (["MIG-cccc"], {GPU_MEMORY: 24 * GIBIBYTE}),
        (["GPU-gone"], {}),
    ],
    ids=["by its UUID", "two", "a part of one", "unknown"],
)
@pytest.mark.usefixtures("_library")
def test_use_is_a_mean_over_gpus_and_memory_their_sum(gpus: list[str], use: dict[str, float]) -> None:
    meter = GpuMeter.open(gpus)
    assert meter is not None

    assert meter.read() == use
    meter.close()


@pytest.mark.usefixtures("_library")
def test_gpus_are_measured_beside_the_trainer() -> None:
    meter = ResourceMeter(["GPU-aaaa"])

    with meter.measuring(os.getpid()):
        eventually(lambda: meter.memory > 0)
    found = meter.take()

    assert (found[GPU_UTILIZATION], found[GPU_MEMORY]) == (0.25, 8 * GIBIBYTE)


@pytest.mark.usefixtures("_library")
def test_there_is_nothing_to_read_without_gpus() -> None:
    assert GpuMeter.open([]) is None


def test_there_is_nothing_to_read_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", raising)

    assert GpuMeter.open(["0"]) is None


def raising(name: str) -> ctypes.CDLL:
    raise OSError(f"{name}: cannot open shared object file")
