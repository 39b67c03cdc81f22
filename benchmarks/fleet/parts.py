"""Processes of the fleet, and the samples that they take. Told to over stdin, they begin, and report a line of JSON."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import psutil

from server.kit.errors import DatabaseUnavailable

Sample = tuple[str, float, float, float]
"""An operation, its beginning on the machine's monotonic clock, its seconds, and the processor seconds of its thread in
this process (0: not known)."""


NICE = 10
"""Of the fleet, which has processors of its own where the servers are not on the same machine."""
SWITCH_SECONDS = 0.2


class Samples:
    """The samples of this process. Any thread may add some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: list[Sample] = []
        self._moments: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def add(self, operation: str, began: float, processor: float = 0.0) -> None:
        """Add an operation that ends now."""
        with self._lock:
            self._taken.append((operation, began, time.monotonic() - began, processor))

    def moment(self, name: str) -> None:
        """Note that something happened now."""
        self._moments[name] = time.monotonic()

    def fail(self, operation: str) -> None:
        """Count a failed operation."""
        with self._lock:
            self._failures[operation] = self._failures.get(operation, 0) + 1

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Take the time of an operation. One for which the database was not available is counted, not raised."""
        began, processor = time.monotonic(), time.thread_time()
        try:
            yield
        except DatabaseUnavailable:
            self.fail(operation)
        else:
            self.add(operation, began, time.thread_time() - processor)

    def serve(self, begin: Callable[[], None], state: Callable[[], Mapping[str, Any]]) -> None:
        """Begin when the parent says so; then report samples and state whenever it asks, until it is gone."""
        os.nice(NICE)
        # Threads that wait for the interpreter ask for it so often: hundreds of them would use all processors for that.
        sys.setswitchinterval(SWITCH_SECONDS)
        sys.stdin.readline()
        begin()
        for _ in sys.stdin:
            with self._lock:
                report = {"taken": self._taken, "failures": self._failures}
                self._taken, self._failures = [], {}
            sys.stdout.write(json.dumps({**report, "moments": dict(self._moments), **state()}) + "\n")
            sys.stdout.flush()


class Part:
    """One process of the fleet, as the benchmark sees it."""

    def __init__(self, role: str, module: str, *arguments: object, name: str = "") -> None:
        self.role = role
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.fleet.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.process = psutil.Process(self._process.pid)
        self.begun = False
        self.samples: list[Sample] = []
        self.failures: dict[str, int] = {}

    def begin(self) -> None:
        """Let the process begin; it has its modules already if it was started long enough ago."""
        self._say("begin")
        self.begun = True

    def report(self) -> dict[str, Any]:
        """Ask for the state, and keep the samples that were taken since. Raises RuntimeError if the process ended."""
        assert self._process.stdout is not None
        self._say("report")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of {self.role} ended ({self._process.wait()})")
        report: dict[str, Any] = json.loads(line)
        self.samples += map(tuple, report["taken"])
        for operation, count in report["failures"].items():
            self.failures[operation] = self.failures.get(operation, 0) + count
        return report

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError(f"a process of {self.role} ended ({self._process.wait()})") from error

    def kill(self) -> None:
        """kill -9 the process."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
