"""Processes of a build: starting them, their logs, and the limits of restarts."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ludus.child_process import ChildProcess, last_lines

PORT_ARGUMENT: Final = "--mlagents-port"
LOG_ARGUMENT: Final = "-logFile"
NO_GRAPHICS: Final = ("-nographics", "-batchmode")
EXTENSIONS: Final = (".app", ".exe", ".x86_64", ".x86")


class ExecutableNotFound(Exception):
    """There is no build at a path; the message has the places that were searched."""


def find_executable(path: Path, system: str = sys.platform) -> Path:
    """Return the file that starts the build which `path` names, with or without its extension.

    `system` is one of `sys.platform`'s names. Raises ExecutableNotFound.
    """
    looked = list(dict.fromkeys(_candidates(path, system)))
    for candidate in looked:
        if candidate.is_file():
            if not os.access(candidate, os.X_OK):
                raise ExecutableNotFound(f"{candidate} may not be executed: run chmod +x on it")
            return candidate.resolve()
    where = ", ".join(str(candidate) for candidate in looked)
    raise ExecutableNotFound(f"there is no build {path} for this system ({system}); looked for {where}")


def _candidates(path: Path, system: str) -> Iterator[Path]:
    """Yield the possible paths of a build, the named one first."""
    yield path
    bare = path.with_name(path.name.removesuffix(path.suffix)) if path.suffix in EXTENSIONS else path
    if system == "darwin":
        inside = bare.with_name(f"{bare.name}.app") / "Contents" / "MacOS"
        yield inside / bare.name
        yield from sorted(inside.glob("*"))
    elif system == "win32":
        yield bare.with_name(f"{bare.name}.exe")
    else:
        yield bare.with_name(f"{bare.name}.x86_64")
        yield bare.with_name(f"{bare.name}.x86")
        yield bare


def arguments(port: int, log: Path | None, env_args: Sequence[str] = (), *, no_graphics: bool = False) -> list[str]:
    """Return the arguments of one build. `log` is left out where `env_args` name a log file themselves."""
    log_arguments = [] if log is None or own_log(env_args) is not None else [LOG_ARGUMENT, str(log)]
    return [*(NO_GRAPHICS if no_graphics else ()), PORT_ARGUMENT, str(port), *log_arguments, *env_args]


def own_log(env_args: Sequence[str]) -> str | None:
    """Return the log file that a user's arguments name: `-` stands for the console. None if they name none."""
    lowered = [argument.lower() for argument in env_args]
    if LOG_ARGUMENT.lower() not in lowered:
        return None
    following = env_args[lowered.index(LOG_ARGUMENT.lower()) + 1 :]
    return following[0] if following else "-"


LOCAL: Final = ("localhost", "127.0.0.1", "::1")
EXEMPT_VARIABLES: Final = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
"""Variables with the hosts that need no proxy, for C, .NET and gRPC. The last one hides the first one from gRPC."""


@dataclass(frozen=True)
class PlayerLog:
    """Files to which the processes of one worker write."""

    folder: Path
    worker: int

    @property
    def player(self) -> Path:
        """Unity's own log."""
        return self.folder / f"Player-{self.worker}.log"

    @property
    def output(self) -> Path:
        """Output of the process."""
        return self.folder / f"Player-{self.worker}.out"

    def make_room(self) -> None:
        """Rename the files of an earlier process, which Unity would overwrite, to a free number: `Player-0.1.log`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in (self.player, self.output):
            if file.exists() and file.stat().st_size:
                number = 1
                while (aside := file.with_name(f"{file.stem}.{number}{file.suffix}")).exists():
                    number += 1
                file.rename(aside)


class Player(ChildProcess):
    """A running process of a build. It does not get the Ctrl-C of this terminal, but is asked to end."""

    def __init__(self, executable: Path, arguments: Sequence[str], log: PlayerLog | None) -> None:
        """Start it. Raises ExecutableNotFound if the system refuses."""
        if log is not None:
            log.make_room()
        self._output = None if log is None else log.output
        unity_log = own_log(arguments)
        self.log = None if unity_log in {None, "-"} else Path(str(unity_log))
        """Unity's log, if that is a file."""
        environment = player_environment(os.environ)
        try:
            with open(self._output or os.devnull, "wb") as sink:  # noqa: PTH123  devnull is no path
                super().__init__(
                    [executable, *arguments], environment=environment, own_group=True, stdout=sink, stderr=sink
                )
        except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
            raise ExecutableNotFound(f"{executable} cannot be started: {error}") from None

    def clear(self) -> None:
        """Remove the file of the process' output if it is empty."""
        if self._output is not None and self._output.exists() and not self._output.stat().st_size:
            self._output.unlink()

    def last_lines(self) -> str:
        """Return the last lines of the log and of the output, for people; empty without any."""
        parts = []
        for title, file in ((f"its log, {self.log}, ends with", self.log), ("it printed", self._output)):
            if file is not None and (lines := last_lines(file)):
                parts.append("\n    ".join([f"{title}:", *lines]))
        return "\n".join(parts)


@dataclass
class RestartQuota:
    """Limits of the restarts of one worker's process; the rules and numbers are ML-Agents'."""

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
