"""Games for the runs of an experiment: a command for each run that is under way, until it ends."""

import shlex
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from ludus.child_process import ChildProcess, describe_exit
from ludus.cli.client import Failure
from ludus.cli.exits import Exit
from ludus.cli.render import echo
from ludus.client import TERMINAL_STATES, Client

RUN: Final = "{run}"
"""Stands for the id of a run in a command."""
STARTS: Final = 3
"""Times in a row that the command of a run may end within `QUICK_SECONDS`: it restarts crashed games itself."""
QUICK_SECONDS: Final = 60.0
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
        self._ending: list[ChildProcess] = []
        """Asked to end."""
        self._quick_ends: dict[str, int] = {}
        """How often in a row the command of a run ended at once while the run went on."""

    def poll(self) -> None:
        """Start games for runs that have begun, and end those of runs that are over.

        A run whose command ends at once again and again gets no further one; the others go on. Raises Failure where the
        command cannot be started at all.
        """
        live = self._live()
        for game in [game for game in self._ending if game.exit_code() is not None]:
            game.end()
            self._ending.remove(game)
        for run, game in list(self._games.items()):
            code = game.exit_code()
            if run in live and code is None:
                continue
            del self._games[run]
            game.terminate()
            self._ending.append(game)
            if run in live and code is not None:
                quick = time.monotonic() - game.started_at < QUICK_SECONDS
                self._quick_ends[run] = self._quick_ends.get(run, 0) + 1 if quick else 0
                if self._quick_ends[run] == STARTS:
                    words = f"{shlex.join(self._of(run))} ended {STARTS} times at once ({describe_exit(code)})"
                    echo(f"{words}: {run} gets no games from here", err=True)
        for run in live - self._games.keys():
            if self._quick_ends.get(run, 0) < STARTS:
                try:
                    game = ChildProcess(self._of(run), own_group=True, stdout=sys.stderr.buffer, tied=True)
                except OSError as error:
                    raise Failure(f"{self._command[0]} cannot be started: {error.strerror}", Exit.USAGE) from error
                self._games[run] = game

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
        for game in [*self._games.values(), *self._ending]:
            game.end(STOP_SECONDS)
