"""The resources of a trainer and its collectors, measured on real processes."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.waiting import eventually
from worker.collectors.collector_process import MODULE
from worker.host import resources
from worker.host.resources import (
    COLLECTOR_CPU,
    COLLECTOR_MEMORY,
    TRAINER_CPU,
    TRAINER_MEMORY,
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
