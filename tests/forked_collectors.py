"""Collectors of the tests: forks of an interpreter that has already imported what a collector imports.

The tests start hundreds of collectors. Each would import for 0.3 s of processor time, and for 2 s with torch. A forked
collector runs `main` as a started one does. Its parent is the fork server, so the kernel does not kill it when the
learner's thread ends: tests of that start the collector as the product does (`real_collectors`).
"""

import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess

import pytest

from ludus.collector.channel import Channel
from worker.collectors.processes import EDGE_MODULE, MODULE, ONE_THREAD, WarmCollector

SPAWN = WarmCollector.__dict__["spawn"]


class ForkedProcess:
    """A collector's process, with the methods of `ludus.child_process.ChildProcess` that its learner calls."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.started_at = time.monotonic()
        self._process = process
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def exit_code(self) -> int | None:
        with self._lock:  # two threads that ask at once would read one answer
            return self._process.exitcode

    def kill(self) -> None:
        with self._lock:
            self._process.kill()

    def end(self, seconds: float = 0.0) -> int:
        with self._lock:
            self._process.join(seconds)
            self._process.kill()
            self._process.join()
            assert self._process.exitcode is not None
            return self._process.exitcode


def fork_server() -> ForkServerContext:
    """Return a context whose processes have the modules of a worker's collector."""
    context = multiprocessing.get_context("forkserver")
    modules = ["worker.collectors.__main__", "worker.collectors.edge.reader", "worker.learning.networks.torch_policy"]
    context.set_forkserver_preload(modules)
    return context


def install(patch: pytest.MonkeyPatch) -> None:
    """Fork the collectors of learners in this process, from now on."""
    context = fork_server()

    def spawn(cls: type[WarmCollector], module: str = MODULE) -> WarmCollector:
        ours, theirs = socket.socketpair()
        with theirs:
            process = context.Process(target=_collect, args=(module, theirs, {**os.environ, **ONE_THREAD}), daemon=True)
            process.start()
        return cls(ForkedProcess(process), Channel(ours))

    patch.setattr(WarmCollector, "spawn", classmethod(spawn))


@contextmanager
def real_collectors() -> Iterator[None]:
    """Start collectors as the product does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WarmCollector, "spawn", SPAWN)
        yield


def _collect(module: str, channel: socket.socket, environment: dict[str, str]) -> None:
    from ludus.collector.process import main  # noqa: PLC0415  only the fork server has paid for these
    from worker.collectors.acting import POLICIES  # noqa: PLC0415
    from worker.collectors.edge.reader import main as read_edges  # noqa: PLC0415

    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, "--channel", str(channel.detach())]
    if module == EDGE_MODULE:
        read_edges()
    else:
        main(POLICIES)
