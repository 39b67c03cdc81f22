"""The process of a trainer: a session of its own, started before there is a job, and always ended.

A trainer is never forked from the Celery child: CUDA and gRPC do not survive that. It is a fresh interpreter that has
imported torch before there is a job for it (the import alone takes over a second), and it leads a process group of
its own, so that one signal reaches its collectors too.
"""

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Self

import structlog

from ludus.child_process import ChildProcess, describe_exit
from worker.trainer.connection import ConnectionClosed, SupervisorConnection
from worker.trainer.messages import Heartbeat, Job

log = structlog.get_logger()

SUCCESSOR_SECONDS = 5.0
"""How long after a trainer was taken the next one is started."""


class TrainerProcess:
    """One trainer, which waits for its job or executes it."""

    def __init__(
        self, process: ChildProcess, connection: SupervisorConnection, errors: IO[bytes] | None = None
    ) -> None:
        """`errors` is its standard error until it has a log of its own."""
        self._process = process
        self.pid = process.pid
        """Process id; also the id of the process group."""
        self._errors = errors
        self.connection = connection

    @classmethod
    def spawn(cls, environment: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()) -> Self:
        """Start an interpreter that imports the trainer and waits; it gets more variables, and keeps open files."""
        supervisor_end, trainer_end = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        with trainer_end:
            process = ChildProcess(
                [sys.executable, "-m", "worker.trainer", "--channel", str(trainer_end.fileno())],
                descriptors=(trainer_end.fileno(), *descriptors),
                environment={**os.environ, **(environment or {})},
                own_group=True,
                stderr=errors,
            )
        return cls(process, SupervisorConnection(supervisor_end), errors)

    def exit_status(self) -> str | None:
        """Return how the trainer ended ("exit code 1", "signal SIGKILL"), None while it lives. Does not reap it."""
        code = self._process.exit_code()
        return None if code is None else describe_exit(code)

    def last_line(self) -> str | None:
        """Return the last line on standard error before the trainer had a log: why an import failed."""
        lines = self._early_errors().strip().splitlines()
        return lines[-1].strip() if lines else None

    def _early_errors(self) -> str:
        if self._errors is None:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    @contextmanager
    def heartbeat(self, seconds: float) -> Iterator[None]:
        """Send the trainer heartbeats, on a thread of their own, so that a slow database does not end it."""
        ended = threading.Event()

        def beat() -> None:
            with suppress(ConnectionClosed):  # `receive` raises it
                while not ended.wait(seconds):
                    self.connection.send(Heartbeat())

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def end(self) -> None:
        """Kill the whole process group, and reap the trainer."""
        self._process.end()
        self.connection.close()
        if self._errors is not None:
            sys.stderr.write(self._early_errors())  # into the worker's log
            self._errors.close()
            self._errors = None


class WarmTrainer:
    """Keeps one trainer ready per worker slot, so that a run starts without waiting for imports.

    The successor of a trainer that was taken is started some seconds later: the run that has just begun needs the CPU
    first. Safe to use from several threads.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()) -> None:
        self._environment = environment
        self._descriptors = descriptors
        self._lock = threading.Lock()
        self._waiting: TrainerProcess | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    def prepare(self) -> None:
        """Start a trainer if none waits. A host that cannot start one now is asked again by `take`."""
        with self._lock:
            if self._waiting is None and not self._closed:
                try:
                    self._waiting = self._spawn()
                except OSError as error:
                    log.warning("trainer_not_prepared", error=str(error))

    def take(self, job: Job) -> TrainerProcess:
        """Return a trainer that has the job: the warm one if it lives, else a fresh one.

        Raises `ConnectionClosed`, with the reason, if the fresh one dies, too, before it has the job, and OSError if
        none can be started.
        """
        with self._lock:
            trainer, self._waiting = self._waiting or self._spawn(), None
        try:
            trainer.connection.send(job)
        except ConnectionClosed:
            trainer.end()
            trainer = self._spawn()
            try:
                trainer.connection.send(job)
            except ConnectionClosed as error:
                reason = trainer.last_line() or str(error)
                trainer.end()
                raise ConnectionClosed(reason) from error
        self._timer = threading.Timer(SUCCESSOR_SECONDS, self.prepare)
        self._timer.daemon = True
        self._timer.start()
        return trainer

    def _spawn(self) -> TrainerProcess:
        return TrainerProcess.spawn(self._environment, self._descriptors)

    def close(self) -> None:
        """End the waiting trainer."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._waiting is not None:
                self._waiting.end()
                self._waiting = None
