"""Simulators on this machine: `ludus simulate` as a child process of a program."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, TypedDict, Unpack

from ludus.child_process import ChildProcess
from ludus.protocol.credentials import CLIENT_TOKEN, Credential

LAST_LINES: Final = 20
LAST_SESSIONS_SECONDS: Final = 10.0
"""Time-out of the simulators' own end, once the server has closed their sessions."""
STOP_SECONDS: Final = 15.0
"""Time-out for the simulators to stop; longer than that of `ludus simulate` itself."""


class SimulatorOptions(TypedDict, total=False):
    """Options of `ludus simulate`."""

    count: int
    """Processes."""
    envs: int
    """Games of each process."""
    behavior: str | None
    """Name of the behavior in the run's configuration. None: the game's name."""
    arguments: Mapping[str, object]
    """Arguments of the game."""
    seed_parameter: str | None
    """Environment parameter of the run that is the seed of the episodes. None: there is none."""


class StartedSimulators:
    """Simulators that a program has started. They end with their run, with the block, and with the program."""

    def __init__(
        self,
        game: str,
        run: str,
        gateway: str,
        credential: Credential | None,
        show: Callable[[str], object] | None,
        **options: Unpack[SimulatorOptions],
    ) -> None:
        """See `ludus.client.simulators.Simulators.start`."""
        self.last_lines = deque[str](maxlen=LAST_LINES)
        """The newest lines that they printed."""
        self._show = show
        command = [sys.executable, "-m", "ludus.cli", "simulate", game, "--run", run, "--server", gateway]
        command += ["--count", str(options.get("count", 1)), "--envs", str(options.get("envs", 1))]
        seed_parameter, behavior = options.get("seed_parameter"), options.get("behavior")
        command += [] if seed_parameter is None else ["--seed-parameter", seed_parameter]
        command += [] if behavior is None else ["--behavior", behavior]
        for key, value in options.get("arguments", {}).items():
            command += ["--env-arg", f"{key}={json.dumps(value)}"]  # read as YAML, which includes JSON
        environment = dict(os.environ)
        if credential is not None:
            environment[CLIENT_TOKEN] = credential.token
        self._process = ChildProcess(command, environment=environment, tied=True, stdout=self._keep, stderr=self._keep)

    @property
    def exit_code(self) -> int | None:
        """The exit code of `ludus simulate`, 0 after a finished run; None while they play."""
        return None if self._process.exit_code() is None else self._process.end()  # reads its last lines

    def end(self, seconds: float = LAST_SESSIONS_SECONDS) -> int:
        """Stop them, after the seconds that they may need if their run has just ended; return the exit code."""
        if self._process.wait(seconds) is None:
            self._process.terminate()
        return self._process.end(STOP_SECONDS)

    def _keep(self, line: str) -> None:
        self.last_lines.append(line.strip())
        if self._show is not None:
            self._show(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(LAST_SESSIONS_SECONDS if kind is None else 0.0)
