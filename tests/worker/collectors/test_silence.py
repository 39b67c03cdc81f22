"""Only the silence of a process that could have spoken counts, on however busy a machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.waiting import eventually
from worker.collectors.processes import Silence

Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> int:
        code = f"print(flush=True)\n{code}"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until_still(pid: int) -> None:
    """Wait until a process sleeps, or is stopped."""
    eventually(lambda: psutil.Process(pid).status() in {psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED})


def looked_at(silence: Silence, seconds: int) -> Silence:
    for now in range(1, seconds + 1):
        silence.look(float(now))
    return silence


def test_a_process_that_is_stopped_is_silent(start: Start) -> None:
    pid = start("while True: pass")
    os.kill(pid, signal.SIGSTOP)
    until_still(pid)

    silence = looked_at(Silence(pid, 0.0), 10)

    assert silence.total == 10.0
    assert silence.idle == 9.0, "the first look has nothing to compare with"


def test_a_process_that_sleeps_is_silent(start: Start) -> None:
    pid = start("import time; time.sleep(60)")
    until_still(pid)

    assert looked_at(Silence(pid, 0.0), 10).idle == 9.0


def test_a_process_that_computes_or_waits_for_a_processor_is_busy(start: Start) -> None:
    pid = start("while True: pass")
    competitor = start("while True: pass")
    processors = os.sched_getaffinity(0)
    for each in (pid, competitor):
        os.sched_setaffinity(each, {min(processors)})
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))

    silence = looked_at(Silence(pid, 0.0), 10)

    assert silence.total == 10.0
    assert silence.idle == 0.0


def test_time_in_which_nobody_looked_does_not_count(start: Start) -> None:
    pid = start("import time; time.sleep(60)")
    until_still(pid)
    silence = looked_at(Silence(pid, 0.0), 3)

    silence.look(500.0)

    assert silence.total == 3.0 + 2.0
    assert silence.idle == 2.0 + 2.0


def test_a_word_ends_the_silence(start: Start) -> None:
    pid = start("import time; time.sleep(60)")
    until_still(pid)
    silence = looked_at(Silence(pid, 0.0), 10)

    silence.heard(10.0)
    silence.look(11.0)
    silence.look(12.0)

    assert (silence.total, silence.idle) == (2.0, 1.0)


def test_a_process_that_has_ended_is_no_matter_of_silence() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert looked_at(Silence(process.pid, 0.0), 3).idle == 0.0
