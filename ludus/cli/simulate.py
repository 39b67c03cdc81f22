"""`ludus simulate`: games of Gymnasium and PettingZoo, and Python games of one's own, as simulators of a run.

The command checks the game, then starts processes (`ludus.cli.simulate_process`) and keeps them running until
the run ends: what crashes is started again, after growing pauses, until it has crashed too often.
"""

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from ludus.cli.exits import INTERRUPTED, Exit, sigterm_interrupts
from ludus.cli.options import SEED, ca_file_option, gateway_option, patience_option, token_option
from ludus.cli.render import echo
from ludus.cli.sources import GAME_METAVAR, RANDOM, ScriptedType, Source, SourceType, check, game_options
from ludus.demonstrations import DemonstrationError, Recorder, inspect, read
from ludus.protocol.credentials import SIMULATOR_TOKEN

CRASHED: Final = 70
"""Exit code of a process that ended by an unexpected error."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A process that lived this long has recovered: its crashes are counted anew."""
STOP_SECONDS: Final = 5.0
TICK_SECONDS: Final = 0.1
LAST_WORDS_SECONDS: Final = 1.0
"""How long what an ended process has said is waited for; it ends later where the game left a process that holds on."""


@dataclass(frozen=True)
class Plan:
    """What one process simulates. Travels to it as JSON; the token goes through the environment."""

    token_given: bool
    """Whether the token was given on the command line, and is in LUDUS_SIMULATOR_TOKEN for that."""

    source: Source
    envs: int
    scripted: Mapping[int, str]
    """Team -> who plays it, here instead of in the run."""
    seed: int | None
    server: str
    run: str
    label: str
    ca_file: str | None
    patience_seconds: float
    record: str | None
    """File that what is played is recorded to."""

    def to_json(self) -> str:
        """Render on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        scripted = {int(team): player for team, player in fields["scripted"].items()}
        return cls(**{**fields, "source": Source(**fields["source"]), "scripted": scripted})


@click.command()
@click.argument("source", metavar=GAME_METAVAR, type=SourceType())
@click.option("--run", "run", required=True, help="Id or name of the run; a name means its newest run.")
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Processes.")
@click.option("--envs", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Games per process.")
@gateway_option
@token_option
@ca_file_option
@click.option("--behavior", help="Name of the behavior in the run's configuration. [the game's name]")
@game_options
@click.option(
    "--scripted",
    metavar="TEAM=PLAYER",
    type=ScriptedType(),
    multiple=True,
    help=f"Let a team be played here, by {RANDOM!r} or an exported model (FILE.onnx), not by the run. Can be given "
    "several times.",
)
@click.option("--seed", type=SEED, help="Seed of the games, in place of the run's.")
@click.option(
    "--seed-parameter",
    metavar="NAME",
    help="Environment parameter of the run whose value is the seed of the episodes begun with it.",
)
@click.option("--label", help="What people read in the list of simulators. [game and host]")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How often in a row a process that crashes is started again.",
)
@patience_option
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Record what is played to FILE (.npz), a demonstration to imitate. Goes on with one that exists. With several "
    "processes each has its own, FILE-0.npz and so on.",
)
def simulate(
    *,
    source: Source,
    run: str,
    count: int,
    envs: int,
    server: str,
    token: str | None,
    ca_file: Path | None,
    behavior: str | None,
    separate: bool,
    teams: tuple[int, ...],
    arguments: tuple[tuple[str, Any], ...],
    scripted: tuple[tuple[int, str], ...],
    seed: int | None,
    seed_parameter: str | None,
    label: str | None,
    restarts: int,
    patience: float,
    record: Path | None,
) -> None:
    """Play games in a run until it ends: COUNT processes with ENVS games each.

    GAME is one of Gymnasium (gymnasium:CartPole-v1), of PettingZoo (pettingzoo:classic.connect_four_v3), or your own in
    Python: python:FILE.py[:CLASS] or MODULE:CLASS, a Gymnasium or PettingZoo environment or a Simulation of
    `ludus.sdk.simulator`, as in `ludus simulate python:maze.py --run maze --count 2 --envs 4`. Processes wait for the
    run to start, come back when the connection breaks, and are started again when they crash. Ctrl-C ends them all.

    \b
    Exit codes:
      0  the run finished
      1  the server refused the simulators, or they crashed too often
      2  the command line is wrong
      3  the gateway cannot be reached
      4  the run failed
      5  the run was cancelled
    """
    source = replace(
        source,
        arguments=dict(arguments),
        behavior=behavior,
        separate=separate,
        teams=teams,
        seed_parameter=seed_parameter,
    )
    check(source, dict(scripted))
    recordings = name_recordings(record, count)
    plans = [
        Plan(
            source=source,
            envs=envs,
            token_given=token is not None,
            scripted=dict(scripted),
            seed=None if seed is None else seed + index,
            server=server,
            run=run,
            label=label or f"{source.name} x{envs} on {platform.node()}".encode()[:200].decode(errors="ignore"),
            ca_file=None if ca_file is None else str(ca_file),
            patience_seconds=patience,
            record=None if recording is None else str(recording),
        )
        for index, recording in enumerate(recordings)
    ]
    with sigterm_interrupts():
        code = Supervisor(plans, token, restarts).run()
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
    """Join what was recorded, even by processes that were killed, and say what it is."""
    Recorder(file)
    if not file.exists():
        echo(f"nothing was recorded to {file}: no step was played to its outcome", err=True)
        return
    found = inspect(read(file))
    echo(f"{file} holds {found.transitions} transitions, {found.episodes} whole episodes", err=True)


class Child:
    """One simulating process, its crashes, and when it may be started again."""

    def __init__(self, index: int, plan: Plan, token: str | None, notices: "Notices") -> None:
        self.index = index
        self.outcome: int | None = None
        """Exit code, once the process shall not be started again."""
        self._plan = plan
        self._token = token
        self._notices = notices
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._crashes = 0
        self._started_at = 0.0
        self._start_at = 0.0

    def start(self) -> None:
        """Start the process. Its standard input stays open for as long as we live: it ends when we do."""
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        if self._token is not None:
            environment[SIMULATOR_TOKEN] = self._token
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli.simulate_process", self._plan.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._started_at = time.monotonic()
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def tick(self, restarts: int) -> None:
        """Look after the process: note its end, start it again when it is time."""
        if self.outcome is not None:
            return
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self.start()
            return
        code = self._process.poll()
        if code is not None:
            self._let_go()
            self._ended(code, restarts)

    def stop(self) -> None:
        """Ask the process to end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def kill(self, deadline: float) -> None:
        """Wait until the deadline, then end the process for certain."""
        if self._process is None:
            return
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        """Hear the last words of a process that has ended: the command may end right after it."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._listener is not None
        self._process.stdin.close()
        self._listener.join(LAST_WORDS_SECONDS)
        self._process = self._listener = None

    def _ended(self, code: int, restarts: int) -> None:
        if code in set(Exit):
            self.outcome = code
            return
        lived = time.monotonic() - self._started_at
        self._crashes = 1 if lived > STEADY_SECONDS else self._crashes + 1
        how = f"was killed by signal {-code}" if code < 0 else "crashed"
        if self._crashes > restarts:
            self.outcome = Exit.REFUSED
            self._notices.say(self.index, f"{how} for the {self._crashes}. time in a row; it is not started again")
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (self._crashes - 1), LONGEST_PAUSE_SECONDS)
        self._start_at = time.monotonic() + pause
        self._notices.say(self.index, f"{how}; starting it again in {pause:g} s")

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._notices.say(self.index, line.rstrip("\n"))
        process.stdout.close()


class Notices:
    """Prints what the processes say; what several of them say alike, only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}
        """Sentence -> the process that said it last."""

    def say(self, index: int, sentence: str) -> None:
        """Print a sentence of one process."""
        with self._lock:
            before = self._last.setdefault(sentence, index)
            if before == index:
                echo(f"process {index}: {sentence}", err=True)  # simulators have their numbers from the run


class Supervisor:
    """Runs all processes until each has come to its end."""

    def __init__(self, plans: list[Plan], token: str | None, restarts: int) -> None:
        notices = Notices()
        self._children = [Child(index, plan, token, notices) for index, plan in enumerate(plans)]
        self._restarts = restarts

    def run(self) -> int:
        """Return the exit code of the command."""
        try:
            for child in self._children:
                child.start()
            while any(child.outcome is None for child in self._children) and not self._finished():
                for child in self._children:
                    child.tick(self._restarts)
                time.sleep(TICK_SECONDS)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            self._stop()
        if self._finished():
            return Exit.OK
        return next(child.outcome for child in self._children if child.outcome is not None)

    def _finished(self) -> bool:
        """Whether one process saw the run finish; the others then have nothing left to do either."""
        return any(child.outcome == Exit.OK for child in self._children)

    def _stop(self) -> None:
        # The server closes all sessions of a finished run; give them the moment that this takes.
        deadline = time.monotonic() + STOP_SECONDS
        while self._finished() and any(child.outcome is None for child in self._children):
            if time.monotonic() > deadline - STOP_SECONDS / 2:
                break
            for child in self._children:
                child.tick(restarts=0)
            time.sleep(TICK_SECONDS)
        for child in self._children:
            child.stop()
        for child in self._children:
            child.kill(deadline)
