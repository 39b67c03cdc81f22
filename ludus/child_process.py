"""Child processes: start, tie to the parent, log, stop in time, end for certain, restart after growing pauses.

The only module of `ludus` that uses calls of one operating system: process groups and the parent-death signal exist on
POSIX and on Linux alone. Elsewhere a child is ended by itself, and a tied one notices the end of its standard input.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from ludus.backoff import Backoff

PARENT: Final = "LUDUS_PARENT_PID"
"""Environment variable with the id of the process that started a tied child."""
LAST_LINES_SECONDS: Final = 1.0
"""Time-out of `end` for the last lines. They end later if the child left a process that keeps the pipe open."""
POLL_SECONDS: Final = 0.02
TAIL_LINES: Final = 8
TAIL_BYTES: Final = 8192
_ON_LINUX: Final = sys.platform.startswith("linux")
# A child that leads a group does not get the Ctrl-C of this terminal.
_NEW_GROUP: Final = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))

Output = IO[bytes] | Callable[[str], None] | None
"""A file; or a function that is called, on a thread, with each line; or None: that of this process."""


class ChildProcess:
    """A process that this one started, and all processes of its group if it leads one."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        own_group: bool = False,
        tied: bool = False,
        stdout: Output = None,
        stderr: Output = None,
    ) -> None:
        """Start it. Raises OSError if the system refuses.

        Args:
            command: Program and arguments.
            environment: Its whole environment; None: that of this process.
            descriptors: Open files that it inherits (POSIX).
            own_group: Whether it leads a session and process group, which `end` ends with it.
            tied: Whether it ends when this process does; it must call `end_with_parent`. On Linux it ends when the
                *thread* ends that started it.
            stdout: Destination of its standard output.
            stderr: Destination of its standard error.
        """
        self.started_at = time.monotonic()
        self._own_group = own_group
        variables = dict(os.environ if environment is None else environment)
        if tied:
            variables[PARENT] = str(os.getpid())
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE if tied and not _ON_LINUX else subprocess.DEVNULL,
            stdout=subprocess.PIPE if callable(stdout) else stdout,
            stderr=subprocess.PIPE if callable(stderr) else stderr,
            env=variables,
            pass_fds=tuple(descriptors),
            start_new_session=own_group,
            creationflags=_NEW_GROUP if own_group else 0,
        )
        pipes = ((self._process.stdout, stdout), (self._process.stderr, stderr))
        self._readers = [
            threading.Thread(target=_read_lines, args=(pipe, write), daemon=True)
            for pipe, write in pipes
            if pipe is not None
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Process id; also the id of its group if it leads one."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs.

        The leader of a group is not reaped before `end`: until then the system gives the group's id to no other one.
        """
        if not self._own_group or self._process.returncode is not None or sys.platform == "win32":
            return self._process.poll()
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C to the process alone."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM to the process, not to its group; on Windows, end it."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and its group, without waiting for the end."""
        if self._process.returncode is not None:
            return
        if self._own_group and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: only zombies are left
                os.killpg(self.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def wait(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the end of the process; return the exit code, None if it still runs."""
        deadline = time.monotonic() + seconds
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return code

    def end(self, seconds: float = 0.0) -> int:
        """Wait at most `seconds` for the end of the process, then kill it and its group; return the exit code."""
        self.wait(seconds)
        self.kill()
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for reader in self._readers:
            reader.join(LAST_LINES_SECONDS)
        return code


class RestartedProcess:
    """A child process that is started again, after growing pauses, for as long as its owner calls `poll`."""

    def __init__(self, start: Callable[[], ChildProcess], backoff: Backoff) -> None:
        self.backoff = backoff
        self.process: ChildProcess | None = None
        self._start = start
        self._restart_at: float | None = None
        self._started_at = 0.0

    def start(self) -> None:
        """Start the process now."""
        self.process, self._restart_at = self._start(), None

    def poll(self) -> int | None:
        """Start the process again when its pause is over; return its exit code once it has ended, with its group."""
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self.start()
        if self.process is None or self.process.exit_code() is None:
            return None
        return self.end()

    def restart_later(self) -> float:
        """Plan to start the process, which has ended, again; return the pause in seconds."""
        pause = self.backoff.pause(time.monotonic() - self._started_at)
        self._restart_at = time.monotonic() + pause
        return pause

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self._restart_at = None
        if self.process is not None:
            self.process.terminate()

    def end(self, seconds: float = 0.0) -> int | None:
        """End the process as `ChildProcess.end` does; return its exit code, None if there is none."""
        self._restart_at = None
        if self.process is None:
            return None
        self._started_at = self.process.started_at
        code = self.process.end(seconds)
        self.process = None
        return code


def end_with_parent(parent: int | None = None) -> None:
    """Make the system end this process when the one that started it ends.

    `parent` is its process id; None: that of the process that started this one as `tied`, if any did so. On Linux the
    kernel sends SIGKILL when the parent's *thread* ends. Elsewhere this process ends with its standard input.
    """
    named = os.environ.pop(PARENT, None)
    if parent is None and named is None:
        return
    if not _ON_LINUX:
        threading.Thread(target=_end_with_standard_input, daemon=True).start()
        return
    import ctypes  # noqa: PLC0415  only here and only on Linux

    pr_set_pdeathsig = 1  # linux/prctl.h
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != (int(named or 0) if parent is None else parent):  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Return the end of a process in words ("exit code 1", "signal SIGKILL"), from its code as in `subprocess`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


def last_lines(file: Path) -> list[str]:
    """Return the last lines of a file of output that are not blank; none if it cannot be read."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(file.stat().st_size - TAIL_BYTES, 0))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]


def _end_with_standard_input() -> None:
    # Not sys.stdin.read(): its lock, held by this thread, would abort the interpreter at its end.
    while os.read(0, 1024):
        pass
    os._exit(1)


def _read_lines(pipe: IO[bytes], write: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            write(line.decode(errors="replace").rstrip("\r\n"))
