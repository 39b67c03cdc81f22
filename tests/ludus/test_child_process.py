"""`ludus.child_process`: children are real processes here."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ludus.backoff import Backoff
from ludus.child_process import PARENT, ChildProcess, Output, RestartedProcess, describe_exit
from tests.waiting import eventually

SLEEPS = "import time; time.sleep(600)"
SECONDS = 20.0
Start = Callable[..., ChildProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts `python -c PROGRAM`."""
    started: list[ChildProcess] = []

    def start(program: str, *, own_group: bool = False, tied: bool = False, stdout: Output = None) -> ChildProcess:
        child = ChildProcess([sys.executable, "-c", program], own_group=own_group, tied=tied, stdout=stdout)
        started.append(child)
        return child

    yield start
    for child in started:
        child.end()


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("own_group", [False, True])
def test_a_child_that_ended_keeps_its_exit_code(start: Start, own_group: bool) -> None:
    child = start("raise SystemExit(7)", own_group=own_group)

    assert child.wait(SECONDS) == 7
    assert (child.exit_code(), child.end(), child.end(), child.exit_code()) == (7, 7, 7, 7)


def test_a_child_that_does_not_stop_in_time_is_killed(start: Start) -> None:
    child = start(SLEEPS)

    assert child.exit_code() is None
    assert child.end(0.05) == -signal.SIGKILL


def test_a_child_that_stops_when_it_is_asked_is_not_killed(start: Start) -> None:
    lines: list[str] = []
    program = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(3)); print('on', flush=True)"
    child = start(f"{program}; time.sleep(600)", stdout=lines.append)
    eventually(lambda: lines == ["on"])

    child.terminate()

    assert child.end(SECONDS) == 3


def test_the_end_of_a_leader_is_that_of_its_group_even_where_the_leader_has_ended_by_itself(start: Start) -> None:
    lines: list[str] = []
    leader = start(
        "import subprocess, sys\n"
        f"other = subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], stdout=subprocess.DEVNULL)\n"
        "print(other.pid, flush=True)",
        own_group=True,
        stdout=lines.append,
    )
    assert leader.wait(SECONDS) == 0
    eventually(lambda: len(lines) == 1)
    assert runs(int(lines[0]))

    leader.end()

    eventually(lambda: not runs(int(lines[0])))


def test_the_last_lines_of_a_child_have_been_read_when_it_has_been_ended(start: Start) -> None:
    lines: list[str] = []
    child = start("print('one'); print('two', end='')", stdout=lines.append)

    child.end(SECONDS)

    assert lines == ["one", "two"]


def test_output_that_goes_into_a_file_outlives_the_child(start: Start, tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        child = start("print('written')", stdout=log)

    child.end(SECONDS)

    assert (tmp_path / "log").read_text() == "written\n"


def test_a_tied_child_ends_with_its_parent() -> None:
    tied = (
        "import sys, time; from ludus.child_process import end_with_parent; end_with_parent(); "
        "print('tied', flush=True); time.sleep(600)"
    )
    program = (
        "import sys, time; from ludus.child_process import ChildProcess\n"
        f"child = ChildProcess([sys.executable, '-c', {tied!r}], own_group=True, tied=True)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        (child,) = said - {"tied"}

        parent.kill()

        eventually(lambda: not runs(int(child)))


def test_a_tied_child_does_not_tie_its_own_children(start: Start) -> None:
    lines: list[str] = []
    program = "import os; from ludus.child_process import PARENT, end_with_parent; print(os.environ[PARENT]);"
    child = start(f"{program} end_with_parent(); print(os.environ.get(PARENT))", tied=True, stdout=lines.append)

    assert child.end(SECONDS) == 0

    assert lines == [str(os.getpid()), "None"]


def test_a_process_that_was_not_started_as_tied_is_not_ended_by_its_parent(start: Start) -> None:
    assert PARENT not in os.environ
    assert start("from ludus.child_process import end_with_parent; end_with_parent()").end(SECONDS) == 0


def test_without_a_signal_of_the_kernel_a_tied_child_ends_with_its_standard_input() -> None:
    program = (
        "import time, ludus.child_process as processes; processes._ON_LINUX = False\n"
        "processes.end_with_parent(1); print('tied', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "tied\n"

        child.stdin.close()

        assert child.wait(SECONDS) == 1


def test_a_process_that_ends_is_started_again_when_its_pause_is_over(start: Start, tmp_path: Path) -> None:
    count = tmp_path / "count"
    process = RestartedProcess(
        lambda: start(f"open({str(count)!r}, 'a').write('x'); raise SystemExit(4)"), Backoff(0.05, 1.0)
    )
    process.start()
    for _ in range(2):
        eventually(lambda: process.poll() == 4)
        assert process.process is None
        process.restart_later()
    eventually(lambda: process.poll() == 4)

    assert count.read_text() == "xxx"
    assert process.backoff.failures == 2


def test_a_process_that_is_asked_to_stop_is_not_started_again(start: Start) -> None:
    process = RestartedProcess(lambda: start("pass"), Backoff(0.0, 0.0))
    process.start()
    eventually(lambda: process.poll() == 0)
    process.restart_later()

    process.terminate()

    assert process.poll() is None
    assert process.process is None
    assert process.end() is None


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (1, "exit code 1"), (-9, "signal SIGKILL"), (-40, "signal 40")]
)
def test_an_exit_is_described_as_a_code_or_a_signal(code: int, words: str) -> None:
    assert describe_exit(code) == words
