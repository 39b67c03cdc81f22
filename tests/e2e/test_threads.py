"""A thread of each process of a stack ends: the process ends with it, is started again, and the run goes on."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ludus.client import Client
from ludus.client.errors import ServerUnreachable
from ludus.threads import THREAD_FAILED
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

FAILING_THREAD = """
import os, threading, time
from pathlib import Path

def wait():
    while not Path({folder!r}, str(os.getpid())).exists():
        time.sleep(0.05)
    raise RuntimeError("a thread ends")

def start():
    threading.Thread(target=wait, name="failing", daemon=True).start()

start()
os.register_at_fork(after_in_child=start)
"""
"""`sitecustomize`, which every interpreter imports that starts."""


@pytest.fixture
def fail(tmp_path: Path) -> Callable[[psutil.Process], None]:
    """Return a function that ends a thread of a process of the stack, and waits for the end of the process."""

    def in_process(process: psutil.Process) -> None:
        (tmp_path / "fail" / str(process.pid)).touch()
        eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the process ends")

    return in_process


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LudusUp]:
    """A stack of which every process has a thread that fails when it is told to."""
    (tmp_path / "fail").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FAILING_THREAD.format(folder=str(tmp_path / "fail")))
    path = os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]])
    up = LudusUp(
        tmp_path / "home",
        PYTHONPATH=path,
        LUDUS_WORKER__LEASE_SECONDS="3",
        LUDUS_WORKER__HEARTBEAT_SECONDS="0.5",
        LUDUS_CONTROLLER__RESTART_BUDGET="20",
    )
    yield up
    up.stop()


@pytest.mark.slow
def test_each_process_ends_with_any_of_its_threads_and_the_run_goes_on(
    stack: LudusUp, fail: Callable[[psutil.Process], None]
) -> None:
    with stack.client() as client:
        run = client.runs.create(cartpole(max_steps=10**6))
        player = Player(stack, run.id)
        try:
            wait_for_step(client, run, 600)
            for name, find in {
                "collector": lambda: the(stack.processes("worker.collectors")),
                "trainer": lambda: the(stack.processes("worker.trainer")),
                "slot": lambda: slot(client, run.id),
                "worker": lambda: stack.children()["worker"],
                "controller": lambda: stack.children()["controller"],
                "gateway": lambda: stack.children()["gateway"],
                "api": lambda: stack.children()["api"],
            }.items():
                process = find()
                fail(process)
                assert logged(stack, process.pid, name), f"the end of the {name}'s thread is not in a log"
                step = eventually(lambda: step_of(client, run.id), "the api answers again")
                wait_for_step(client, run, step + 600)
            details = [attempt.detail for attempt in client.runs.attempts(run.id)]
            assert any(f"exit code {THREAD_FAILED}" in (detail or "") for detail in details), details
            client.runs.stop(run.id)
            assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"
        finally:
            player.kill()
    told = (stack.home / "up.out").read_text()
    assert told.count(f"exit code {THREAD_FAILED}") >= 4, told


def step_of(client: Client, run: str) -> int | None:
    """Return the step of a run; None while the api, whose process may have ended a moment ago, does not answer."""
    try:
        return client.runs.get(run).step
    except ServerUnreachable:
        return None


def the(processes: list[psutil.Process]) -> psutil.Process:
    """Return the one process that works, where another one waits warm."""
    return max(processes, key=lambda process: process.cpu_times().user)


def slot(client: Client, run: str) -> psutil.Process:
    newest = max(client.runs.attempts(run), key=lambda each: each.number)
    return psutil.Process(int(newest.worker_id.split("/")[1]))


def logged(stack: LudusUp, pid: int, name: str) -> bool:
    """Tell whether a log says why a process has ended."""
    role = "worker" if name == "slot" else name
    for file in stack.home.rglob("*.log"):
        for line in file.read_text(errors="replace").splitlines():
            if '"thread_failed"' in line:
                event = json.loads(line)
                if event["process"] == role and event["thread"] == "failing":
                    return True
    return False
