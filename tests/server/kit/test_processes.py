"""Processes of the embedded stack: locks, marks, the orphan reaper. All of them are real processes."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.kit.processes import MARK, AlreadyLocked, FileLock, marked, sweep

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    sweep(mark)


def start(program: str, mark: str, *, new_session: bool = False) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_sweep_ends_what_carries_the_mark_and_nothing_else(mark: str) -> None:
    other_mark = uuid.uuid4().hex
    ours = start(SLEEPER, mark, new_session=True)
    theirs = start(SLEEPER, other_mark)

    assert sweep(mark) == 1

    assert ours.wait() == -signal.SIGKILL
    assert theirs.poll() is None
    sweep(other_mark)
    theirs.wait()
    for process in (ours, theirs):
        assert process.stdout is not None
        process.stdout.close()


def test_a_grandchild_in_a_session_of_its_own_carries_the_mark(mark: str) -> None:
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""
    with start(program, mark) as parent:
        assert len(marked(mark)) == 2

        assert sweep(mark) == 2
        parent.wait()

    assert marked(mark) == []


def test_the_warden_sweeps_when_the_other_end_of_its_pipe_closes_and_holds_the_lock_until_then(
    mark: str, tmp_path: Path
) -> None:
    sleeper = start(SLEEPER, mark, new_session=True)
    lock = FileLock.take(tmp_path / "lock", "first")
    reaper = subprocess.Popen(
        [sys.executable, "-m", "server.embedded.orphan_reaper", mark],
        stdin=subprocess.PIPE,
        pass_fds=(lock.descriptor,),
    )
    lock.release()
    with pytest.raises(AlreadyLocked):
        FileLock.take(tmp_path / "lock", "second")
    assert reaper.stdin is not None

    reaper.stdin.close()

    assert reaper.wait(timeout=30) == 0
    assert sleeper.wait(timeout=30) == -signal.SIGKILL
    assert sleeper.stdout is not None
    sleeper.stdout.close()
    FileLock.take(tmp_path / "lock", "second").release()


def test_a_taken_lock_names_its_owner(tmp_path: Path) -> None:
    lock = FileLock.take(tmp_path / "lock", "process 7")

    with pytest.raises(AlreadyLocked, match="process 7"):
        FileLock.take(tmp_path / "lock", "process 8")

    lock.release()
