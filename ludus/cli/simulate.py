"""`ludus simulate`: games of Gymnasium and PettingZoo, and Python games of one's own, as simulators of a run.

The command checks the game, then starts processes (`ludus.cli.simulate_process`) and keeps them running until
the run ends. A process that crashes is started again, after growing pauses, until it has crashed too often.
"""

import asyncio
import json
import logging
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from ludus.backoff import Backoff
from ludus.child_process import TAIL_LINES, ChildProcess, RestartedProcess, describe_exit
from ludus.cli.collect import CLIENT, OwnCollector, printed_games
from ludus.cli.exits import GAMES_HELP, INTERRUPTED, Exit, exit_of_end, exit_of_error, sigterm_interrupts
from ludus.cli.options import (
    SEED,
    ca_file_option,
    connect_timeout_option,
    count_option,
    envs_option,
    gateway_option,
    option,
    record_option,
    token_option,
)
from ludus.cli.render import echo
from ludus.cli.sources import GAME_METAVAR, RANDOM, Source, check, game_options, game_type, scripted_type
from ludus.demonstrations import DemonstrationError, Recorder, inspect, read
from ludus.games.settings import Collect, collects_here, falls_back
from ludus.protocol.credentials import SIMULATOR_TOKEN
from ludus.sdk.errors import Failure, SimulatorError
from ludus.sdk.join import REPORT_SECONDS, JoinClient, RunEnd, Target, new_session_id

logger = logging.getLogger("ludus.games")

REPORT: Final = "\x1e"
"""Begins a line of a process that reports on itself, not one that its game prints."""
REMEMBERED: Final = 1000
"""Newest reports that are not printed again when another process makes them, too."""
CRASHED: Final = 70
"""Exit code of a process that ended by an unexpected error."""
OUTCOME: Final = 100
"""Added to the exit code of a process whose run has ended or refused it: a smaller code is one of a game that exits."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
TICK_SECONDS: Final = 0.1
WAITING_REPORTS: Final = 30
"""Reports that wait to be sent, at most: the server takes no more of one run in a minute."""
LAST_REPORTS_SECONDS: Final = REPORT_SECONDS + 1.0
"""Time-out of the last reports when the command ends."""


@dataclass(frozen=True)
class Plan:
    """The task of one process. Travels to it as JSON; the token goes through the environment."""

    token_given: bool
    """Whether the token was given on the command line; then it is in LUDUS_SIMULATOR_TOKEN."""

    source: Source
    envs: int
    scripted: Mapping[int, str]
    """Team -> the player of it on this machine."""
    seed: int | None
    server: str
    run: str
    label: str
    ca_file: str | None
    connect_timeout_seconds: float | None
    record: str | None
    """File to which the episodes are recorded."""
    session_id: str = ""
    """Drawn for each process that is started."""

    def target(self, token: str | None) -> Target:
        """Return the run to join."""
        ca_file = None if self.ca_file is None else Path(self.ca_file)
        return Target(
            self.server, self.run, token, self.label, ca_file, self.connect_timeout_seconds, session_id=self.session_id
        )

    def to_json(self) -> str:
        """Render on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read the output of `to_json`."""
        fields = json.loads(text)
        scripted = {int(team): player for team, player in fields["scripted"].items()}
        return cls(**{**fields, "source": Source(**fields["source"]), "scripted": scripted})


@click.command(epilog=GAMES_HELP)
@click.argument("source", metavar=GAME_METAVAR, type=game_type)
@click.option("--run", "run", required=True, help="Id or name of the run; a name means its newest run.")
@count_option
@envs_option
@gateway_option
@token_option
@ca_file_option
@click.option("--behavior", help="Name of the behavior in the run's configuration. [the game's name]")
@game_options
@click.option(
    "--scripted",
    metavar="TEAM=PLAYER",
    type=scripted_type,
    multiple=True,
    help=f"Play a team here, by {RANDOM!r} or an exported model (FILE.onnx), instead of by the run. Can be given "
    "several times.",
)
@click.option("--seed", type=SEED, help="Seed of the games, in place of the run's.")
@click.option(
    "--seed-parameter", metavar="NAME", help="Environment parameter of the run that is the seed of the episodes."
)
@click.option("--label", help="Label in the list of simulators. [game and host]")
@option(
    "--restarts",
    type=click.IntRange(min=0),
    default=10,
    help="Maximum number of restarts in a row of a crashed process.",
)
@click.option(
    "--collect",
    type=click.Choice(["here", "there"]),
    help="Where actions are computed: on this machine, or by the worker. [there if the server is on this machine; "
    "else here, where the run allows it]",
)
@connect_timeout_option
@record_option("the episodes", " With several processes each has its own, FILE-0.npz and so on.")
def simulate(
    *,
    source: Source,
    count: int,
    envs: int,
    token: str | None,
    ca_file: Path | None,
    arguments: tuple[tuple[str, object], ...],
    scripted: tuple[tuple[int, str], ...],
    seed: int | None,
    label: str | None,
    restarts: int,
    record: Path | None,
    run: str,
    server: str,
    connect_timeout: float,
    collect: Collect | None,
    **lineup: Any,
) -> None:
    """Play games in a run until it ends: COUNT processes with ENVS games each.

    GAME is one of Gymnasium (gymnasium:CartPole-v1), of PettingZoo (pettingzoo:classic.connect_four_v3), or your own in
    Python: python:FILE.py[:CLASS] or MODULE:CLASS, a Gymnasium or PettingZoo environment or a Simulation of
    `ludus.sdk`, as in `ludus simulate python:maze.py --run maze --count 2 --envs 4`. Processes wait for the
    run to start, come back when the connection breaks, and are started again when they crash. Ctrl-C ends them all.
    """
    source = replace(source, arguments=dict(arguments), **lineup)
    check(source, dict(scripted), envs)
    recordings = name_recordings(record, count)
    label = label or f"{source.name} x{envs} on {platform.node()}".encode()[:200].decode(errors="ignore")
    target = Target(server, run, token, label, ca_file, connect_timeout)
    plans = [
        Plan(
            source=source,
            envs=envs,
            token_given=token is not None,
            scripted=dict(scripted),
            seed=None if seed is None else seed + index,
            server=server,
            run=run,
            label=label,
            ca_file=None if ca_file is None else str(ca_file),
            connect_timeout_seconds=connect_timeout,
            record=None if recording is None else str(recording),
        )
        for index, recording in enumerate(recordings)
    ]
    with sigterm_interrupts(), printed_games():
        code = play_all(plans, target, restarts, collect)
    for recording in recordings:
        if recording is not None:
            finish_recording(recording)
    sys.exit(code)


def name_recordings(record: Path | None, count: int) -> list[Path | None]:
    """Return the file of each process. Raises click.UsageError where it could not be written."""
    if record is None:
        return [None] * count
    if record.suffix != ".npz":
        raise click.UsageError(f"--record {record}: recordings are .npz files; name it {record.stem}.npz")
    if not os.access(record.absolute().parent, os.W_OK):
        raise click.UsageError(
            f"--record {record}: there is no folder {record.absolute().parent} that can be written to"
        )
    files = [record] if count == 1 else [record.with_stem(f"{record.stem}-{index}") for index in range(count)]
    for file in files:
        try:
            Recorder(file)
        except DemonstrationError as error:
            raise click.UsageError(f"--record: {error}; it cannot be continued, name another file") from None
    return list(files)


def finish_recording(file: Path) -> None:
    """Join the recordings, including those of processes that were killed, and print their sizes."""
    Recorder(file)
    if not file.exists():
        echo(f"nothing was recorded to {file}: no step was played to its outcome", err=True)
        return
    recorded = inspect(read(file))
    echo(f"{file} holds {recorded.transitions} transitions, {recorded.episodes} whole episodes", err=True)


class Reporter:
    """Reports problems to their runs, one after the other, on a thread: a gateway may take seconds to answer.

    Best effort. Of many reports that wait the newest ones are sent.
    """

    def __init__(self) -> None:
        self._waiting = deque[tuple[Target, Failure]](maxlen=WAITING_REPORTS)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._send, name="reports", daemon=True)
        self._thread.start()

    def report(self, target: Target, problem: Failure) -> None:
        """Send a report as soon as those before it are sent, unless this is closed."""
        with self._changed:
            if not self._closed:
                self._waiting.append((target, problem))
                self._changed.notify()

    def close(self, *, drop: bool = False) -> None:
        """Take no more reports; with `drop`, leave out those that wait."""
        with self._changed:
            self._closed = True
            if drop:
                self._waiting.clear()
            self._changed.notify()

    def end(self) -> None:
        """Close it, and wait for the reports that are left, `LAST_REPORTS_SECONDS` at most."""
        self.close()
        self._thread.join(LAST_REPORTS_SECONDS)

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                target, problem = self._waiting.popleft()
            try:
                asyncio.run(_report(target, problem))
            except SimulatorError as error:
                logger.debug("the problem %s was not reported to the run: %s", problem.code, error)


async def _report(target: Target, problem: Failure) -> None:
    async with JoinClient(target, logger.log, CLIENT) as client:
        await client.report(target.session_id, problem)


class Simulator:
    """One simulating process, and its exit code once it is not restarted any more."""

    def __init__(
        self, index: int, plan: Plan, token: str | None, output: "MergedOutput", reporter: Reporter, restarts: int
    ) -> None:
        self.outcome: int | None = None
        self._reporter = reporter
        self._output = output
        self._index = index
        self._plan = plan
        self._printed = deque[str](maxlen=TAIL_LINES)
        """The newest lines of the game."""
        self._token = token
        self.restarts = restarts
        self._process = RestartedProcess(self._launch, Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
        self.start = self._process.start
        self.stop = self._process.terminate
        self.end = self._process.end

    def _launch(self) -> ChildProcess:
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        if self._token is not None:
            environment[SIMULATOR_TOKEN] = self._token
        self._plan = replace(self._plan, session_id=new_session_id())
        self._printed.clear()
        command = [sys.executable, "-m", "ludus.cli.simulate_process", self._plan.to_json()]
        return ChildProcess(command, environment=environment, tied=True, stdout=self._show, stderr=self._show)

    def _show(self, line: str) -> None:
        if not line.startswith(REPORT):
            self._printed.append(line)
        self._output.line(self._index, line)

    def poll(self) -> None:
        """Record the end of the process, and restart it after its pause."""
        if self.outcome is not None or (code := self._process.poll()) is None:
            return
        if code - OUTCOME in set(Exit):
            self.outcome = code - OUTCOME
            return
        pause = self._process.restart_later()
        crashes = self._process.backoff.failures
        ended = "crashed" if code == CRASHED else f"ended with {describe_exit(code)}"
        if crashes > self.restarts:
            self.outcome = Exit.REFUSED
            self._process.terminate()
            given_up = f"for the {crashes}. time in a row; it is not started again"
            self._output.say(self._index, f"{ended} {given_up}")
            self._report("restarts_exhausted", f"the process of the game {ended} {given_up}")
            return
        if code != CRASHED:  # the process reports an error of its game itself
            self._report("exited", f"the process of the game {ended}")
        self._output.say(self._index, f"{ended}; starting it again in {pause:g} s")

    def _report(self, code: str, sentence: str) -> None:
        """Report the end of the process to the run, with the last lines of the game."""
        printed = "\n    ".join(["; it printed:", *self._printed]) if self._printed else ""
        problem = Failure(code, f"{sentence}{printed}", permanent=False)
        self._reporter.report(self._plan.target(self._token), problem)


class MergedOutput:
    """Prints the lines of all processes. Reports that several of them make are printed once; lines of games are not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, int] = {}
        """Report -> the process that made it first; the newest ones only, because games may run for weeks."""

    def line(self, index: int, line: str) -> None:
        """Print a line of one process: a report (`REPORT`), or what its game prints."""
        if line.startswith(REPORT):
            self.say(index, line.removeprefix(REPORT))
        else:
            echo(f"process {index}: {line}", err=True)

    def say(self, index: int, sentence: str) -> None:
        """Print a report about one process."""
        with self._lock:
            before = self._said.setdefault(sentence, index)
            if len(self._said) > REMEMBERED:
                del self._said[next(iter(self._said))]
        if before == index:
            echo(f"process {index}: {sentence}", err=True)  # simulators have their numbers from the run


def play_all(plans: list[Plan], target: Target, restarts: int, wanted: Collect | None) -> int:
    """Play with or without an edge collector of this command; return the exit code."""
    try:
        collects = asyncio.run(collects_here(target, CLIENT, wanted, bridged=False))
    except SimulatorError as error:
        echo(f"Error: {error}", err=True)
        return exit_of_error(error.code)
    if collects:
        with OwnCollector(target) as collector:
            nearer = [replace(plan, server=collector.address, ca_file=None, token_given=True) for plan in plans]
            code = supervise(nearer, "", restarts, collector)
        if not falls_back(collector.outcome, wanted):
            return code
    return supervise(plans, target.token, restarts)


def supervise(plans: list[Plan], token: str | None, restarts: int, collector: OwnCollector | None = None) -> int:
    """Run all processes until each has ended, one has seen the run finish, or their collector has ended.

    Returns the exit code of the command.
    """
    output, reporter = MergedOutput(), Reporter()
    simulators = [Simulator(index, plan, token, output, reporter, restarts) for index, plan in enumerate(plans)]

    def finished() -> bool:
        ended = collector is not None and collector.outcome is not None
        return ended or any(simulator.outcome == Exit.OK for simulator in simulators)

    def poll_until(over: Callable[[], bool]) -> None:
        while any(simulator.outcome is None for simulator in simulators) and not over():
            for simulator in simulators:
                simulator.poll()
            time.sleep(TICK_SECONDS)

    try:
        for simulator in simulators:
            simulator.start()
        poll_until(finished)
        if finished():
            # The server closes all sessions of a finished run: wait for the others, but restart and report none.
            reporter.close(drop=True)
            until = time.monotonic() + STOP_SECONDS / 2
            for simulator in simulators:
                simulator.restarts = 0
            poll_until(lambda: time.monotonic() > until)
            if collector is not None and isinstance(collector.outcome, SimulatorError):
                return exit_of_error(collector.outcome.code)
            if collector is not None and isinstance(collector.outcome, RunEnd):
                return exit_of_end(collector.outcome.code)
            return Exit.OK
    except KeyboardInterrupt:
        reporter.close(drop=True)
        return INTERRUPTED
    finally:
        deadline = time.monotonic() + STOP_SECONDS
        for simulator in simulators:
            simulator.stop()
        for simulator in simulators:
            simulator.end(max(deadline - time.monotonic(), 0.0))
        reporter.end()
    return next(simulator.outcome for simulator in simulators if simulator.outcome is not None)
