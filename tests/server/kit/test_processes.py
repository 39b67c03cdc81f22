"""Processes of the embedded stack: locks, marks, wardens, services. All of them are real processes."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from server.embedded.child_process import Service, ServiceSpec
from server.embedded.stack import Interrupts, private_receivers
from server.kit.processes import MARK, AlreadyLocked, FileLock, marked, sweep
from server.kit.settings import ApiSettings

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


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


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
    warden = subprocess.Popen(
        [sys.executable, "-m", "server.embedded.orphans", mark], stdin=subprocess.PIPE, pass_fds=(lock.descriptor,)
    )
    lock.release()
    with pytest.raises(AlreadyLocked):
        FileLock.take(tmp_path / "lock", "second")
    assert warden.stdin is not None

    warden.stdin.close()

    assert warden.wait(timeout=30) == 0
    assert sleeper.wait(timeout=30) == -signal.SIGKILL
    assert sleeper.stdout is not None
    sleeper.stdout.close()
    FileLock.take(tmp_path / "lock", "second").release()


def test_a_taken_lock_names_its_owner(tmp_path: Path) -> None:
    lock = FileLock.take(tmp_path / "lock", "process 7")

    with pytest.raises(AlreadyLocked, match="process 7"):
        FileLock.take(tmp_path / "lock", "process 8")

    lock.release()


def test_a_child_ends_with_its_parent(mark: str) -> None:
    program = """
import os, subprocess, sys
reading, writing = os.pipe()
code = "import os, sys, time; from server.kit.processes import end_with_parent; end_with_parent(int(sys.argv[1]));"
code += f"os.write({writing}, b'x'); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code, str(os.getpid())], pass_fds=(writing,), start_new_session=True)
os.read(reading, 1)
print("ready", flush=True)
import time; time.sleep(600)
"""
    with start(program, mark) as parent:
        assert len(marked(mark)) == 2

        parent.kill()
        parent.wait()

        wait_for(lambda: marked(mark) == [])


@pytest.fixture
def make_service(tmp_path: Path, mark: str) -> Iterator[Callable[..., Service]]:
    """Return a maker of services that run `python -c PROGRAM` in place of a `ludus` command."""
    services: list[Service] = []

    def make(*command: str) -> Service:
        service = Service(ServiceSpec("test", command, {**os.environ, MARK: mark}, tmp_path / "test.log"))
        services.append(service)
        return service

    yield make
    for service in services:
        service.kill()


def test_a_service_that_ends_says_how_and_its_output_is_in_the_log(make_service: Callable[..., Service]) -> None:
    service = make_service("no-such-command")

    service.start()
    while (death := service.death()) is None:
        time.sleep(0.02)

    assert death == "exit code 2"
    assert "No such command 'no-such-command'" in service.spec.log.read_text()


def test_the_pause_before_a_restart_doubles_up_to_a_bound(make_service: Callable[..., Service]) -> None:
    service = make_service("--version")
    service.started_at = time.monotonic()

    pauses = [service.plan_restart() for _ in range(9)]

    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_service_that_lived_long_is_started_again_quickly(make_service: Callable[..., Service]) -> None:
    service = make_service("--version")
    service.started_at = time.monotonic()
    for _ in range(5):
        service.plan_restart()
    service.started_at = time.monotonic() - 61

    assert service.plan_restart() == 0.5


def test_killing_a_service_takes_its_process_group(make_service: Callable[..., Service], mark: str) -> None:
    service = make_service("steward")
    service.start()
    assert service.pid is not None
    leader = psutil.Process(service.pid)

    service.kill()

    assert not leader.is_running()
    assert service.pid is None
    assert marked(mark) == []


def test_a_request_to_stop_wakes_the_waiting_loop() -> None:
    with Interrupts() as interrupts:
        before = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.wait(10)

        assert interrupts.count == 1
        assert time.monotonic() - before < 5


@pytest.mark.parametrize(
    ("api", "allowed"),
    [
        (ApiSettings(), True),
        (ApiSettings(host="0.0.0.0", require_token=True), False),
        (ApiSettings(require_token=True), False),
        (ApiSettings(token=SecretStr("x" * 32)), False),
    ],
)
def test_webhooks_reach_this_machine_only_where_every_client_does(api: ApiSettings, allowed: bool) -> None:
    assert private_receivers(api) is allowed
