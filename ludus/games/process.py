"""Processes of a build: how they are started, what they leave behind, and how often they may be started again."""

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from ludus.games.executable import ExecutableNotFound, own_log

TAIL_LINES: Final = 8
TAIL_BYTES: Final = 8192
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
EXEMPT_VARIABLES: Final = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
"""Which hosts are reached without a proxy: what C, .NET and gRPC read. The last one hides the first one from gRPC."""

# A game must not get the Ctrl-C of our terminal: it is told to end, and gets time for it.
_NEW_GROUP: Final = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))


@dataclass(frozen=True)
class PlayerLog:
    """Where the processes of one worker write."""

    folder: Path
    worker: int

    @property
    def player(self) -> Path:
        """Unity's own log."""
        return self.folder / f"Player-{self.worker}.log"

    @property
    def output(self) -> Path:
        """What the process prints."""
        return self.folder / f"Player-{self.worker}.out"

    def make_room(self) -> None:
        """Put aside what an earlier process wrote, under the next free number: `Player-0.1.log`. Unity would not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in (self.player, self.output):
            if file.exists() and file.stat().st_size:
                number = 1
                while (aside := file.with_name(f"{file.stem}.{number}{file.suffix}")).exists():
                    number += 1
                file.rename(aside)


class Player:
    """A running process of a build."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path | None, output: Path | None) -> None:
        self.started_at = time.monotonic()
        self.log = log
        """Where Unity logs, if that is a file."""
        self._process = process
        self._output = output

    @classmethod
    def launch(cls, executable: Path, arguments: Sequence[str], log: PlayerLog | None) -> Self:
        """Start a process. Raises ExecutableNotFound if the system refuses."""
        if log is not None:
            log.make_room()
        output = None if log is None else log.output
        try:
            with open(os.devnull if output is None else output, "wb") as sink:  # noqa: PTH123  devnull is no path
                process = subprocess.Popen(
                    [str(executable), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=player_environment(os.environ),
                    start_new_session=True,
                    creationflags=_NEW_GROUP,
                )
        except OSError as error:
            raise ExecutableNotFound(f"{executable} cannot be started: {error}") from None
        own = own_log(arguments)
        return cls(process, None if own in {None, "-"} else Path(str(own)), output)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask the process to end; on Windows, end it."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process for certain."""
        self._process.kill()
        self._process.wait()

    def clear(self) -> None:
        """Remove the file of what the process printed if that was nothing."""
        if self._output is not None and self._output.exists() and not self._output.stat().st_size:
            self._output.unlink()

    def last_words(self) -> str:
        """Return the last lines of the log and of what the process printed, as far as there are any, for people."""
        said = []
        for title, file in ((f"its log, {self.log}, ends with", self.log), ("it printed", self._output)):
            if file is not None and (lines := _last_lines(file)):
                said.append("\n    ".join([f"{title}:", *lines]))
        return "\n".join(said)


@dataclass
class RestartQuota:
    """How often one worker's process may be started again; the rules and numbers are ML-Agents'."""

    lifetime: int = 10
    """Restarts altogether; -1: any number."""
    rate: int = 1
    """Restarts within `period_seconds`; -1: any number."""
    period_seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    used: int = 0
    _recent: "deque[float]" = field(default_factory=deque)

    def take(self) -> bool:
        """Use one restart up, if one is left."""
        now = self.clock()
        while self._recent and now - self._recent[0] > self.period_seconds:
            self._recent.popleft()
        if 0 <= self.lifetime <= self.used or 0 <= self.rate <= len(self._recent):
            return False
        self.used += 1
        self._recent.append(now)
        return True


def player_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a game: its calls to this machine go through no proxy."""
    changed = dict(environment)
    for name in EXEMPT_VARIABLES:
        hosts = [host for host in changed.get(name, "").split(",") if host.strip()]
        if name in changed or name != "no_grpc_proxy":
            changed[name] = ",".join([*hosts, *(host for host in LOCAL if host not in hosts)])
    return changed


def _last_lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(file.stat().st_size - TAIL_BYTES, 0))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]
