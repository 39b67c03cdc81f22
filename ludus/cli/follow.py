"""`ludus run wait | watch | logs`: the commands that stay with a run until something happens."""

import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from ludus.api import TERMINAL_STATES, ApiError, Client, WaitTimedOut
from ludus.cli import exits
from ludus.cli.client import Failure, connected
from ludus.cli.exits import OUTCOMES, Exit
from ludus.cli.options import json_option, require_option, timeout_option
from ludus.cli.render import LINES, echo, event_line, max_steps, number, print_json, print_json_line, printable
from ludus.cli.require import ALIASES, Requirement, judge
from ludus.records import Event, Log, Run

REFRESH_SECONDS = 1.0
PLAIN_SECONDS = 10.0
"""How often `watch` prints progress where it can't rewrite the line."""


@click.command(epilog=exits.HELP)
@click.argument("run")
@timeout_option
@require_option
@json_option
@connected
def wait(
    client: Client, *, run: str, timeout: float | None, requirements: tuple[Requirement, ...], as_json: bool
) -> None:
    """Wait until a run has ended, and judge it: two lines make a check in a CI pipeline.

    \b
    RUN=$(ludus run create ppo.yaml --name nightly)
    ludus run wait $RUN --timeout 30m --require 'reward>=475'
    """
    sys.exit(await_end(client, run, timeout, requirements, as_json=as_json))


def await_end(
    client: Client, run: str, timeout: float | None, requirements: Sequence[Requirement], *, as_json: bool = False
) -> Exit:
    """Wait for a run's end, say how it ended and return the exit code."""
    try:
        ended = client.wait(run, timeout=timeout)
    except WaitTimedOut as error:
        echo(f"{error}; it goes on (`ludus run show {error.run.id}`)", err=True)
        if as_json:
            print_json({"run": error.run, "requirements": []})
        return Exit.TIMED_OUT
    metrics = client.metrics(ended.id) if requirements else []
    verdicts = [judge(requirement, ended, metrics) for requirement in requirements]
    echo(_ending(ended), err=True)
    for verdict in verdicts:
        word = "met" if verdict.met else "NOT met"
        echo(f"{verdict.requirement.text}: {word} ({verdict.reason})", err=True)
    if as_json:
        judged = [{"require": each.requirement.text, "met": each.met, "reason": each.reason} for each in verdicts]
        print_json({"run": ended, "requirements": judged})
    outcome = OUTCOMES[ended.state]
    if outcome is Exit.OK and not all(verdict.met for verdict in verdicts):
        return Exit.UNMET
    return outcome


@click.command()
@click.argument("run")
@json_option
@connected
def watch(client: Client, *, run: str, as_json: bool) -> None:
    """Follow a run: its events as they happen, and a line of progress. Ctrl-C leaves it running.

    The exit code says how it ended, as with `ludus run wait`. With --json each event is one line.
    """
    record = client.get_run(run)
    if as_json:
        for event in client.follow_events(record.id):
            print_json_line(event)
        sys.exit(OUTCOMES[client.get_run(record.id).state])
    try:
        _watch(client, record)
    except KeyboardInterrupt:
        echo(f"\n{record.id} goes on; `ludus run stop {record.id}` ends it", err=True, kept=LINES)
        sys.exit(130)
    ended = client.get_run(record.id)
    echo(_ending(ended))
    sys.exit(OUTCOMES.get(ended.state, Exit.OK))


@click.command()
@click.argument("run")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt. [the newest with a log]")
@click.option("--name", help="Name of the log. [trainer.log where there is one]")
@click.option("--tail", type=click.IntRange(min=0), metavar="BYTES", help="Only the last so many bytes.")
@click.option("--follow", "-f", is_flag=True, help="Go on as the log grows, until the run has ended.")
@click.option("--list", "list_", is_flag=True, help="Only list the logs.")
@json_option
@connected
def logs(
    client: Client,
    *,
    run: str,
    attempt: int | None,
    name: str | None,
    tail: int | None,
    follow: bool,
    list_: bool,
    as_json: bool,
) -> None:
    """Print a log of a run: by default the trainer's, of the newest attempt."""
    record = client.get_run(run)
    there = client.logs(record.id)
    if as_json:
        print_json(there)
        return
    if list_:
        for each in there:
            echo(f"{each.epoch}  {each.name}  {each.size}")
        return
    log = _choose_log(there, attempt, name)
    _print_log(client, record, log, tail, follow=follow)


@dataclass
class _Progress:
    """Where the last look at a run was, for its speed."""

    step: int
    at: float
    speed: float = 0.0

    def advance(self, step: int) -> float:
        now = time.monotonic()
        if step != self.step and now > self.at:
            self.speed = max(0.0, (step - self.step) / (now - self.at))
            self.step, self.at = step, now
        elif now - self.at > 10 * REFRESH_SECONDS:
            self.speed = 0.0
        return self.speed


def _watch(client: Client, record: Run) -> None:
    """Print events and progress until the event stream ends."""
    events: queue.SimpleQueue[Event | ApiError | None] = queue.SimpleQueue()
    follower = threading.Thread(target=_collect, args=(client, record.id, events), daemon=True)
    follower.start()
    rewrite = sys.stdout.isatty()
    progress = _Progress(record.step, time.monotonic())
    printed = ""
    next_look = 0.0
    while True:
        try:
            event = events.get(timeout=max(0.05, next_look - time.monotonic()))
        except queue.Empty:
            line = printable(_progress_line(client, record.id, progress))
            click.echo(f"\r{line.ljust(len(printed))}" if rewrite else line, nl=not rewrite)
            printed = line
            next_look = time.monotonic() + (REFRESH_SECONDS if rewrite else PLAIN_SECONDS)
            continue
        if rewrite and printed:
            click.echo("\r" + " " * len(printed) + "\r", nl=False)
            printed = ""
        if isinstance(event, ApiError):
            raise event
        if event is None:
            return
        echo(event_line(event))


def _collect(client: Client, run: str, events: "queue.SimpleQueue[Event | ApiError | None]") -> None:
    try:
        for event in client.follow_events(run):
            events.put(event)
        events.put(None)
    except ApiError as error:
        events.put(error)


def _progress_line(client: Client, run: str, progress: _Progress) -> str:
    try:
        record = client.get_run(run)
        metrics = client.metrics(run)
        simulators = len(client.simulators(run, state="connected"))
    except ApiError as error:
        return f"(no answer: {error})"
    parts = [record.state, f"step {number(record.step)} of {number(max_steps(record))}"]
    rewards = [metric for metric in metrics if metric.key == ALIASES["reward"]]
    parts += [f"{metric.behavior} reward {number(metric.value)}" for metric in rewards]
    speed = progress.advance(record.step)
    parts += [f"{speed:,.0f} steps/s", f"{simulators} simulator{'' if simulators == 1 else 's'}"]
    return "   ".join(parts)


def _ending(run: Run) -> str:
    parts = [f"{run.id} {run.state}", f"after {number(run.step)} steps"]
    if run.stop_reason:
        parts.append(f"({run.stop_reason}{': ' + run.stop_detail if run.stop_detail else ''})")
    return " ".join(parts)


def _choose_log(logs: Sequence[Log], attempt: int | None, name: str | None) -> Log:
    fitting = [log for log in logs if attempt in {None, log.epoch} and name in {None, log.name}]
    if not fitting:
        there = ", ".join(f"{log.name} of attempt {log.epoch}" for log in logs) or "none yet"
        raise Failure(f"there is no such log; there is: {there}", Exit.REFUSED)
    newest = [log for log in fitting if log.epoch == fitting[-1].epoch]
    return next((log for log in newest if log.name == "trainer.log"), newest[0])


def _print_log(client: Client, run: Run, log: Log, tail: int | None, *, follow: bool) -> None:
    part = client.read_log(run.id, log.epoch, log.name, tail=tail)
    while True:
        echo(part.text, nl=False, kept=LINES)
        if part.next_offset >= part.size:
            if not follow or client.get_run(run.id).state in TERMINAL_STATES:
                return
            time.sleep(REFRESH_SECONDS)
        part = client.read_log(run.id, log.epoch, log.name, offset=part.next_offset)
