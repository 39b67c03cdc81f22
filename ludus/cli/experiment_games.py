"""Games for the runs of an experiment: a command for each run that is under way, until it ends."""

import shlex
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from ludus.child_process import ChildProcess, describe_exit
from ludus.cli.client import Failure
from ludus.cli.exits import Exit
from ludus.client import TERMINAL_STATES, Client

RUN: Final = "{run}"
"""Stands for the id of a run in a command."""
STARTS: Final = 3
"""Times that the command of a run is started: it restarts crashed games itself."""
STOP_SECONDS: Final = 15.0


def simulate_command(game: str, gateway: str, count: int, envs: int) -> Sequence[str]:
    """Return the command that plays a game of Python's in a run."""
    simulate = [sys.executable, "-m", "ludus.cli", "simulate", game, "--run", RUN, "--server", gateway]
    return [*simulate, "--count", str(count), "--envs", str(envs)]


class ExperimentGames:
    """The games of an experiment's runs on this machine. They end with their runs, and with this block."""

    def __init__(self, client: Client, experiment: str, command: Sequence[str]) -> None:
        """`command` has `{run}` where the run's id belongs."""
        self._client = client
        self._experiment = experiment
        self._command = command
        self._games: dict[str, ChildProcess] = {}
        self._starts: dict[str, int] = {}

    def poll(self) -> None:
        """Start games for runs that have begun, and end those of runs that are over.

        Raises Failure where the command of a run ended again and again while the run went on.
        """
        live = self._live()
        for run, game in list(self._games.items()):
            code = game.exit_code()
            if run not in live or code is not None:
                del self._games[run]
                game.terminate()
                game.end(STOP_SECONDS)
            if run in live and code is not None and self._starts[run] >= STARTS:
                words = f"{shlex.join(self._of(run))} ended {STARTS} times ({describe_exit(code)}) while {run} went on"
                raise Failure(words, Exit.RUN_FAILED)
        for run in live - self._games.keys():
            self._starts[run] = self._starts.get(run, 0) + 1
            self._games[run] = ChildProcess(self._of(run), own_group=True, stdout=sys.stderr.buffer, tied=True)

    def _of(self, run: str) -> Sequence[str]:
        return [part.replace(RUN, run) for part in self._command]

    def _live(self) -> set[str]:
        return {
            run.assessment_id or run.run_id
            for trial in self._client.experiments.trials(self._experiment, 'state = "RUNNING"')
            for run in trial.runs
            if run.state is not None and run.state not in TERMINAL_STATES
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for game in self._games.values():
            game.terminate()
        for game in self._games.values():
            game.end(STOP_SECONDS)
