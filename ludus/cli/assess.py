"""What `ludus gate` and `ludus evaluate` share: a run, its simulators, progress, and reports."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from xml.etree import ElementTree as ET

import click

from ludus.api import TERMINAL_STATES, Client, NotFound, WaitTimedOut
from ludus.cli.exits import OUTCOMES, Exit
from ludus.cli.options import SERVER_VARIABLE
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


def games_option(command: Command) -> Command:
    """Add the options that start simulators."""
    for option in (
        click.option(
            "--gateway",
            metavar="HOST:PORT",
            envvar=SERVER_VARIABLE,
            help="Where the simulators of --game join. [127.0.0.1:7070]",
        ),
        click.option(
            "--envs",
            type=click.IntRange(1, 10_000),
            default=1,
            show_default=True,
            help="Games per process. The slowest of them is waited for: more processes waste less.",
        ),
        click.option(
            "--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Processes of --game."
        ),
        click.option(
            "--game",
            type=SourceType(),
            metavar="LIBRARY:GAME",
            help="Start simulators here, as `ludus simulate` does. [those that join otherwise]",
        ),
    ):
        command = option(command)
    return command


def run_assessment(
    client: Client,
    document: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    name: str | None,
    tags: Sequence[str],
    game: Source | None,
    count: int,
    envs: int,
    gateway: str | None,
    timeout: float | None,
    as_json: bool,
    junit: Path | None,
) -> Assessed:
    """Create a run, wait for its end while telling how far it is, and report. A time-out cancels the run."""
    if game is not None:
        check_source(game, {})
    run = client.create_run(document, overrides=overrides, name=name, tags=tags)
    echo(f"run {run.id} {run.name if run.name != run.id else ''}".rstrip(), err=True)
    settings = (run.config or {}).get("match") or (run.config or {}).get("evaluate") or {}
    try:
        with _simulators(run.id, game, count, envs, gateway, settings.get("seed_parameter")) as alone:
            if game is None:
                echo(f"waiting for simulators: ludus simulate LIBRARY:GAME --run {run.name}", err=True)
            found = _follow(client, run, timeout, alone)
    except KeyboardInterrupt:
        client.cancel(run.id)
        raise
    if found.ended is Exit.REFUSED:
        client.cancel(run.id)
        echo(f"the simulators have ended before {run.id} has; it is cancelled", err=True)
    elif found.ended is Exit.TIMED_OUT:
        client.cancel(run.id)
        echo(f"not decided within {timeout:g} s; {run.id} is cancelled", err=True)
    elif found.result is None or found.ended is not Exit.OK:
        echo(f"{run.id} {found.run.state}: {found.run.stop_detail or found.run.stop_reason}", err=True)
    else:
        echo(found.run.stop_detail or "", err=True)
    if as_json:
        print_json({"run": found.run, "result": found.result})
    if junit is not None:
        _write_junit(junit, found)
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
def _simulators(
    run: str, game: Source | None, count: int, envs: int, gateway: str | None, seed_parameter: str | None
) -> Iterator[Callable[[], bool]]:
    """Let simulators play in the run for the length of the block; say whether they have all ended."""
    if game is None:
        yield lambda: False
        return
    command = [sys.executable, "-m", "ludus.cli", "simulate", f"{game.library}:{game.name}", "--run", run]
    command += ["--count", str(count), "--envs", str(envs)] + ([] if gateway is None else ["--server", gateway])
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
