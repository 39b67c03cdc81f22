"""One long-lived child process of `ludus up`: started, watched, started again with back-off, ended for certain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.kit.processes import describe_exit

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that lived this long is forgiven its earlier deaths."""


@dataclass(frozen=True)
class ServiceSpec:
    """What a service runs."""

    name: str
    """Names the log file and the lines on the console."""
    command: Sequence[str]
    """Arguments of `ludus`."""
    environment: Mapping[str, str]
    log: Path
    descriptors: tuple[int, ...] = ()
    """Open files that the child keeps."""


class Service:
    """A child that leads a session and process group of its own.

    Its output goes straight into its log file: no pipe that a slow reader could fill, and nothing is lost or ends with
    SIGPIPE when the parent dies. Must be started by the parent's main thread: the kernel's parent-death signal fires
    when the *thread* ends that started the child.
    """

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.started_at = 0.0
        self.restart_at: float | None = None
        """When the child is to be started again, on the monotonic clock; None while it runs."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def pid(self) -> int | None:
        """Process id of the running child, which is also its group's."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the child."""
        with self.spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "server.embedded.child", str(os.getpid()), *self.spec.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.spec.environment),
                pass_fds=self.spec.descriptors,
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        self.restart_at = None

    def death(self) -> str | None:
        """Say how the child ended ("exit code 1", "signal SIGKILL") and end the rest of its group; None if it lives.

        The group is ended before the leader is reaped: until then its id can't be given to anybody else.
        """
        if self._process is None:
            return None
        info = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        self.kill()
        return describe_exit(info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)

    def plan_restart(self) -> float:
        """Choose when to start the child again; return the pause in seconds. Doubles with every early death."""
        now = time.monotonic()
        if now - self.started_at > STEADY_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self.restart_at = now + pause
        return pause

    def terminate(self) -> None:
        """Ask the child to stop. Only the leader: it knows how to end its own children well."""
        self.restart_at = None
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child and its process group at once."""
        self.restart_at = None
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
