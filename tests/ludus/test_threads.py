"""An unexpected end of a thread ends its process. In processes of their own: tests have a hook for threads."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ludus.threads import THREAD_FAILED

ROOT = Path(__file__).resolve().parents[2]
ANOTHER_THREAD = """
import sys, threading, time
from ludus.threads import end_with_any_thread

def work():
    {work}

end_with_any_thread()
print("begun")
thread = threading.Thread(target=work, daemon=True)
thread.start()
thread.join()
print("still there", threading.active_count())
"""


def with_a_thread(work: str) -> "subprocess.CompletedProcess[str]":
    program = ANOTHER_THREAD.format(work=work)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("work", ["raise ValueError('lost')", "1 / 0", "raise KeyboardInterrupt"])
def test_an_exception_that_ends_a_thread_is_told_and_ends_the_process(work: str) -> None:
    done = with_a_thread(work)

    assert done.returncode == THREAD_FAILED
    assert done.stdout == "begun\n"
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("work", ["pass", "sys.exit(3)"])
def test_a_thread_that_ends_by_itself_ends_nothing_else(work: str) -> None:
    done = with_a_thread(work)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "begun\nstill there 1\n"


STARTED: dict[str, Counter[str]] = {
    # The thread's exceptions end the process, which is one of ours (`configure_logging`, or `ludus.cli.main`).
    "ludus/child_process.py": Counter(Thread=2),
    "ludus/cli/follow.py": Counter(Thread=1),
    "ludus/cli/learn_run.py": Counter(Thread=1),
    "ludus/cli/collect.py": Counter(Thread=1),
    "ludus/cli/simulate.py": Counter(Thread=1),
    "ludus/play/recordings/tape.py": Counter(Thread=1),
    "ludus/sdk/contract/websocket.py": Counter(Thread=1),
    "server/controller/controller.py": Counter(Thread=1),
    "server/kit/db/checks.py": Counter(Thread=1),
    "server/kit/token_watcher.py": Counter(Thread=1),
    "server/kit/tracing.py": Counter(Thread=1),
    "server/runs/events/tailer.py": Counter(Thread=1),
    "server/webhooks/sender.py": Counter(Thread=1),
    "worker/collectors/processes.py": Counter(Thread=1),
    "worker/host/process.py": Counter(Thread=1, Timer=1),
    "worker/host/resources.py": Counter(Thread=1),
    "worker/host/tasks.py": Counter(Thread=3),
    "worker/trainer/compilation.py": Counter(Thread=1),
    "worker/trainer/connection.py": Counter(Thread=2),
    "worker/trainer/ranks.py": Counter(Thread=1),  # of a process without the hook: rank 0 hears its silence
    # Exceptions are results, which the code that asks for them gets.
    "ludus/sdk/contract/scripted.py": Counter(ThreadPoolExecutor=1),
    "server/gateway/service.py": Counter(ThreadPoolExecutor=1),
    "worker/host/supervisor/transfers.py": Counter(ThreadPoolExecutor=1),
    "worker/trainer/checkpoints.py": Counter(ThreadPoolExecutor=1),
}
"""All places that start threads: a new one is looked at, whether its process has the hook."""
PROCESSES = {
    "ludus/cli/__init__.py": "end_with_any_thread",  # every command, `ludus up` among them
    "ludus/collector/process.py": "configure_logging",  # collectors and the edge reader
    "server/commands.py": "configure_logging",  # api, gateway, controller
    "worker/host/commands.py": "configure_logging",  # the worker's parent
    "worker/host/tasks.py": "configure_logging",  # its slots
    "worker/trainer/__main__.py": "configure_logging",
}
"""The processes with threads, and the call that gives each the hook."""


def calls(file: Path) -> Counter[str]:
    """Return the names of all functions and classes that a file calls."""
    names = Counter[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            names[node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id] += 1
    return names


@pytest.mark.long
def test_every_place_that_starts_threads_is_known_and_every_process_with_threads_ends_with_them() -> None:
    starts = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"}
    files = [file for package in ("ludus", "server", "worker") for file in sorted((ROOT / package).rglob("*.py"))]
    called = {str(file.relative_to(ROOT)): calls(file) for file in files}
    started = {name: Counter({call: names[call] for call in starts & names.keys()}) for name, names in called.items()}

    assert {name: count for name, count in started.items() if count} == STARTED
    for name, hook in PROCESSES.items():
        assert calls(ROOT / name)[hook], f"{name} does not call {hook}"
    of_users = [name for name in STARTED if name.startswith("ludus/sdk/") and "/contract/" not in name]
    assert not of_users, "the SDK's processes are the user's; only `ludus contract` and `fake-server` serve"
