"""What `ludus gate` and `ludus evaluate` share: a run, its simulators, progress, and reports."""

import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from xml.etree import ElementTree as ET

import click

from ludus.api import TERMINAL_STATES, Client, NotFound, WaitTimedOut
from ludus.cli.exits import OUTCOMES, Exit
from ludus.cli.options import (
    SEED,
    SERVER_VARIABLE,
    Assignment,
    json_option,
    run_name_option,
    run_tag_option,
    timeout_option,
)
from ludus.cli.render import LINES, echo, number, print_json, printable
from ludus.cli.sources import Source, SourceType
from ludus.cli.sources import check as check_source
from ludus.records import EvaluationResult, MatchResult, Run

LOOK_SECONDS: Final = 1.0
SIMULATORS_SECONDS: Final = 10.0
"""What simulators get to end by themselves once the run has."""
Result = MatchResult | EvaluationResult
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Assessed:
    """How it ended."""

    run: Run
    result: Result | None
    ended: Exit
    """Of the run, whatever the verdict."""


@dataclass(frozen=True)
class Games:
    """The simulators that a command starts: none without a `source`."""

    source: Source | None
    count: int
    envs: int
    gateway: str | None

    @property
    def seed_parameter(self) -> str | None:
        """By which environment parameter they take the seed of an episode."""
        return None if self.source is None else "seed"


@dataclass(frozen=True)
class RunOptions:
    """What the command line says of the run, and of how it is told of."""

    name: str | None
    tags: tuple[str, ...]
    seed: int | None
    overrides: tuple[tuple[str, Any], ...]
    timeout: float | None
    as_json: bool
    junit: Path | None


def games_options(handler: Command) -> Command:
    """Add the options that start simulators; the command takes them as `games`."""

    @click.option(
        "--game",
        type=SourceType(),
        metavar="LIBRARY:GAME",
        help="Start simulators here, as `ludus simulate` does. [those that join otherwise]",
    )
    @click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Processes of --game.")
    @click.option(
        "--envs",
        type=click.IntRange(1, 10_000),
        default=1,
        show_default=True,
        help="Games per process. The slowest of them is waited for: more processes waste less.",
    )
    @click.option(
        "--gateway",
        metavar="HOST:PORT",
        envvar=SERVER_VARIABLE,
        help="Where the simulators of --game join. [127.0.0.1:7070]",
    )
    @functools.wraps(handler)
    def command(*args: Any, game: Source | None, count: int, envs: int, gateway: str | None, **others: Any) -> None:
        handler(*args, games=Games(game, count, envs, gateway), **others)

    return command  # type: ignore[return-value]  # click adds the options, which the caller doesn't see


def run_options(handler: Command) -> Command:
    """Add the options of the run and of its reports; the command takes them as `options`."""

    @run_name_option
    @run_tag_option
    @click.option("--seed", type=SEED, help="Seed of the run. [drawn]")
    @click.option(
        "--set",
        "overrides",
        type=Assignment(),
        multiple=True,
        help="Any other key of the run, as in environment_parameters.size=9. Can be given several times.",
    )
    @timeout_option
    @json_option
    @click.option(
        "--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a JUnit report, too."
    )
    @functools.wraps(handler)
    def command(
        *args: Any,
        name: str | None,
        tags: tuple[str, ...],
        seed: int | None,
        overrides: tuple[tuple[str, Any], ...],
        timeout: float | None,
        as_json: bool,
        junit: Path | None,
        **others: Any,
    ) -> None:
        handler(*args, options=RunOptions(name, tags, seed, overrides, timeout, as_json, junit), **others)

    return command  # type: ignore[return-value]  # likewise


def run_assessment(
    client: Client, section: str, settings: Mapping[str, Any], games: Games, options: RunOptions
) -> Assessed:
    """Create a run, wait for its end while telling how far it is, and report. A time-out cancels the run.

    `settings` go to a `section` of its configuration, `match` or `evaluate`; what is None is left to its default.
    """
    if games.source is not None:
        check_source(games.source, {})
    document: dict[str, Any] = {section: {key: value for key, value in settings.items() if value is not None}}
    if options.seed is not None:
        document["seed"] = options.seed
    run = client.create_run(document, overrides=dict(options.overrides), name=options.name, tags=options.tags)
    echo(f"run {run.id} {run.name if run.name != run.id else ''}".rstrip(), err=True)
    resolved = (run.config or {}).get(section) or {}
    try:
        with _simulators(run.id, games, resolved.get("seed_parameter")) as alone:
            if games.source is None:
                echo(f"waiting for simulators: ludus simulate LIBRARY:GAME --run {run.name}", err=True)
            found = _follow(client, run, options.timeout, alone)
    except KeyboardInterrupt:
        client.cancel(run.id)
        raise
    if found.ended is Exit.REFUSED:
        client.cancel(run.id)
        echo(f"the simulators have ended before {run.id} has; it is cancelled", err=True)
    elif found.ended is Exit.TIMED_OUT:
        client.cancel(run.id)
        echo(f"not decided within {options.timeout:g} s; {run.id} is cancelled", err=True)
    elif found.result is None or found.ended is not Exit.OK:
        echo(f"{run.id} {found.run.state}: {found.run.stop_detail or found.run.stop_reason}", err=True)
    else:
        echo(found.run.stop_detail or "", err=True)
    if options.as_json:
        print_json({"run": found.run, "result": found.result})
    if options.junit is not None:
        _write_junit(options.junit, found)
    return found


def _follow(client: Client, run: Run, timeout: float | None, alone: Callable[[], bool]) -> Assessed:
    """Wait for the end; print progress when it has moved. Give up when nobody is left to play: `alone`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    said = ""
    while True:
        nobody = alone()  # before the run is looked at, which may have ended since
        left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - time.monotonic())
        try:
            present = client.wait(run.id, timeout=max(left, 0.0))
        except WaitTimedOut as error:
            present = error.run
        result = _result(client, run.id)
        line = _state(present) if result is None else progress_line(result)
        if result is not None and present.state not in TERMINAL_STATES | {"RUNNING"}:
            line += f"; the run is {_state(present)}"
        if line != said:
            said = line
            echo(line, err=True)
        if present.state in TERMINAL_STATES:
            return Assessed(present, result, OUTCOMES[present.state])
        if nobody:
            return Assessed(present, result, Exit.REFUSED)
        if deadline is not None and time.monotonic() >= deadline:
            return Assessed(present, result, Exit.TIMED_OUT)


def _result(client: Client, run: str) -> Result | None:
    try:
        return client.result(run)
    except NotFound:
        return None


def _state(run: Run) -> str:
    return f"{run.state}{f' ({run.stop_detail or run.stop_reason})' if run.stop_reason else ''}"


def progress_line(result: Result) -> str:
    """Say how far an assessment is."""
    if isinstance(result, EvaluationResult):
        interval = "" if result.low is None else f" ({number(result.low)} to {number(result.high)})"
        return f"{result.episodes} of {result.wanted} episodes, mean return {number(result.mean)}{interval}"
    lead = "" if result.elo is None else f", Elo {result.elo:+.0f}"
    if result.elo is not None and result.elo_low is not None and result.elo_high is not None:
        lead += f" ({result.elo_low:+.0f} to {result.elo_high:+.0f})"
    return (
        f"{result.games} games{', paired' if result.paired else ''}: {result.wins} won, {result.draws} drawn, "
        f"{result.losses} lost{lead}, LLR {result.llr:+.2f} ({result.llr_lower:+.2f} to {result.llr_upper:+.2f})"
    )


@contextmanager
def _simulators(run: str, games: Games, seed_parameter: str | None) -> Iterator[Callable[[], bool]]:
    """Let simulators play in the run for the length of the block; say whether they have all ended."""
    if games.source is None:
        yield lambda: False
        return
    game = f"{games.source.library}:{games.source.name}"
    command = [sys.executable, "-m", "ludus.cli", "simulate", game, "--run", run]
    command += ["--count", str(games.count), "--envs", str(games.envs)]
    command += [] if games.gateway is None else ["--server", games.gateway]
    command += [] if seed_parameter is None else ["--seed-parameter", seed_parameter]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield lambda: process.poll() is not None
        try:
            process.wait(SIMULATORS_SECONDS)  # they hear of the end themselves
        except subprocess.TimeoutExpired:
            process.terminate()
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def _write_junit(file: Path, found: Assessed) -> None:
    """Write a report with one test case: failed unless the verdict is `pass`, in error if the run did not end well."""
    result = found.result
    verdict = None if result is None or found.ended is not Exit.OK else result.verdict
    suite = ET.Element("testsuite", name="ludus", tests="1", failures="0", errors="0")
    title = "assessment" if result is None else result.kind
    judged = getattr(result, "candidate", None) or getattr(result, "checkpoint", None) or found.run.id
    case = ET.SubElement(suite, "testcase", classname=f"ludus.{title}", name=str(judged))
    detail = found.run.stop_detail or found.run.stop_reason or found.run.state
    if verdict is None:
        suite.set("errors", "1")
        ET.SubElement(case, "error", type=found.run.state, message=detail)
    elif verdict != "pass":
        suite.set("failures", "1")
        ET.SubElement(case, "failure", type=verdict, message=detail)
    ET.SubElement(case, "system-out").text = f"run {found.run.id}\n{'' if result is None else progress_line(result)}\n"
    ended = found.run.finished_at
    if ended is not None:
        suite.set("time", f"{(ended - found.run.created_at).total_seconds():.3f}")
    for element in suite.iter():
        element.text = None if element.text is None else printable(element.text, LINES)
        element.attrib = {name: printable(text) for name, text in element.attrib.items()}
    file.write_bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True))
