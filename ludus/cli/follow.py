"""`ludus run wait | watch`: commands that follow a run."""

import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import click

from ludus.cli import exits
from ludus.cli.client import connected
from ludus.cli.ending import cancel_interrupted, causes, ended_as, event_line, findings, steps_of
from ludus.cli.exits import INTERRUPTED, OUTCOMES, Exit, sigterm_interrupts
from ludus.cli.options import (
    Requirement,
    cancel_option,
    fail_on_warning_option,
    json_option,
    keep_waiting_option,
    require_option,
    timeout_option,
)
from ludus.cli.render import LINES, echo, end_without_reader, number, print_json, print_json_line, printable
from ludus.cli.reports import INTERRUPTION, Report, ReportedCommand, report_options
from ludus.cli.require import Verdict, early_verdicts, evaluate
from ludus.client import ApiError, Client, RunStalled, WaitTimedOut
from ludus.client.backoff import ServerBackoff
from ludus.metric_keys import SHORT_KEYS
from ludus.schemas import Event, Run

REFRESH_SECONDS = 1.0
WAITING_EVENTS = 1000
"""Events that wait for a console that is slow, or stopped; the server keeps the others."""
Events = queue.Queue[Event | ApiError | None]
"""Events as they come; an error where they can't go on, and None at the run's end."""
AFTERWARDS_SECONDS = 60.0
"""Time in which the server has to answer what is asked after the run's end."""


@click.command(cls=ReportedCommand, epilog=exits.HELP)
@click.argument("run")
@timeout_option
@keep_waiting_option
@cancel_option
@fail_on_warning_option
@require_option
@json_option
@report_options
@connected
def wait(
    client: Client,
    *,
    run: str,
    timeout: float | None,
    keep_waiting: bool,
    cancel_on_interrupt: bool,
    fail_on_warning: bool,
    requirements: tuple[Requirement, ...],
    as_json: bool,
    report: Report,
) -> None:
    """Wait until a run has ended, and judge it: two lines make a check in a CI pipeline.

    \b
    RUN=$(ludus run create ppo.yaml --name nightly)
    ludus run wait $RUN --timeout 30m --require 'reward>=475' --junit ludus.xml

    It also ends, with an exit code of its own, if the run continues only if a person acts: it is PAUSED, or no
    simulator or worker has come for ten minutes; and if a requirement names a metric that the run does not record.
    """
    waiting = Waiting(timeout, requirements, keep_waiting, cancel_on_interrupt, fail_on_warning)
    sys.exit(await_end(client, run, waiting, as_json=as_json, report=report))


@dataclass(frozen=True)
class Waiting:
    """How a command waits for a run's end, and judges it."""

    timeout: float | None = None
    """Seconds."""
    requirements: Sequence[Requirement] = ()
    keep_waiting: bool = False
    """Whether it also waits for a run that continues only if a person acts, or that lacks a required metric."""
    cancel_on_interrupt: bool = False
    fail_on_warning: bool = False


class NoMetric(Exception):
    """A requirement of a run that is still training cannot be judged, now or later."""

    def __init__(self, run: Run, verdict: Verdict) -> None:
        self.run = run
        super().__init__(f"--require {verdict.requirement.text!r}: {verdict.reason}")


def await_end(
    client: Client, run: str, waiting: Waiting, *, as_json: bool = False, report: Report | None = None
) -> int:
    """Wait for a run's end, print it and return the exit code; the report gets all of it."""
    timeout, requirements = waiting.timeout, waiting.requirements
    report = report or Report("run wait")
    report.requirements = requirements
    watch = _check(client, requirements, keep_waiting=waiting.keep_waiting)
    try:
        with sigterm_interrupts():
            ended = client.runs.wait(run, timeout=timeout, unless_stalled=not waiting.keep_waiting, watch=watch)
    except KeyboardInterrupt:
        report.say(
            "; ".join([INTERRUPTION, *([cancel_interrupted(client, run)] if waiting.cancel_on_interrupt else [])])
        )
        return INTERRUPTED
    except (WaitTimedOut, RunStalled, NoMetric) as error:
        report.collect(client, error.run)
        goes_on = "" if isinstance(error, RunStalled) else f"; it continues (`ludus run show {error.run.id}`)"
        goes_on += "; a longer --timeout waits for it" if isinstance(error, WaitTimedOut) else ""
        report.say(f"{error}{goes_on}")
        for cause in () if isinstance(error, NoMetric) else causes(client, error.run):
            report.add(cause)
        if as_json:
            print_json({"run": error.run, "requirements": []})
        return _UNFINISHED[type(error)]
    report.collect(client, ended)
    persist = ServerBackoff(AFTERWARDS_SECONDS).persist
    metrics = persist(partial(client.metrics.list, ended.id)) if requirements else []
    verdicts = [evaluate(requirement, ended, metrics) for requirement in requirements]
    report.verdicts = verdicts
    report.say(_ending(ended))
    for finding in persist(lambda: [*findings(client, ended)]):
        report.add(f"Warning: {finding}")
    for verdict in verdicts:
        word = "met" if verdict.met else "NOT met" if verdict.judged else "NOT judged"
        echo(f"{verdict.requirement.text}: {word} ({verdict.reason})", err=True)
    if as_json:
        judged = [
            {"require": verdict.requirement.text, "met": verdict.met, "reason": verdict.reason} for verdict in verdicts
        ]
        print_json({"run": ended, "requirements": judged})
    outcome = OUTCOMES[ended.state]
    if outcome is Exit.OK and not all(verdict.met for verdict in verdicts):
        return Exit.UNMET if any(verdict.judged and not verdict.met for verdict in verdicts) else Exit.NO_METRIC
    return Exit.WARNED if outcome is Exit.OK and waiting.fail_on_warning and ended.findings else outcome


_UNFINISHED = {WaitTimedOut: Exit.TIMED_OUT, RunStalled: Exit.STALLED, NoMetric: Exit.NO_METRIC}


def _check(client: Client, requirements: Sequence[Requirement], *, keep_waiting: bool) -> Callable[[Run], None]:
    """Return a function that says of each requirement once that the run's first summary does not have its metric.

    It raises NoMetric where the metric cannot come later, unless `keep_waiting`.
    """
    unknown = [*requirements]

    def check(run: Run) -> None:
        if not unknown:
            return
        with suppress(ApiError):  # asked again with the next answer
            for verdict in early_verdicts(unknown, run, client.metrics.list(run.id)):
                if not (verdict.judged or keep_waiting or verdict.later):
                    raise NoMetric(run, verdict)
                if not verdict.judged:
                    echo(f"{verdict.requirement.text}: not to be judged yet: {verdict.reason}", err=True)
                unknown.remove(verdict.requirement)

    return check


@click.command()
@click.argument("run")
@keep_waiting_option
@json_option
@connected
def watch(client: Client, *, run: str, keep_waiting: bool, as_json: bool) -> None:
    """Follow a run: its events as they happen, and a line of progress. Ctrl-C leaves it running.

    The exit code is the outcome, or says that the run needs a person, as with `ludus run wait`. With --json each event
    is one line.
    """
    record = client.runs.get(run)
    events: Events = queue.Queue(WAITING_EVENTS)
    ended = threading.Event()
    threading.Thread(target=_collect, args=(client, record.id, events, ended), daemon=True).start()
    try:
        _print_all(client, record, events, keep_waiting=keep_waiting, as_json=as_json)
    except RunStalled as error:
        echo(str(error), err=True)
        sys.exit(Exit.STALLED)
    except KeyboardInterrupt:
        echo(f"\n{record.id} continues; `ludus run stop {record.id}` ends it", err=True, kept=LINES)
        sys.exit(INTERRUPTED)
    finally:
        ended.set()
    record = client.runs.get(record.id)
    if not as_json:
        echo(_ending(record))
    sys.exit(OUTCOMES.get(record.state, Exit.OK))


@dataclass
class _Progress:
    """The last known step of a run, for its speed."""

    step: int
    read_at: float
    speed: float = 0.0

    def line(self, client: Client, record: Run) -> tuple[frozenset[tuple[str, int]], str]:
        """Return the step of each behavior's newest summary, and a line about the progress of the run."""
        metrics = client.metrics.list(record.id)
        simulators = len(client.simulators.list(record.id, state="connected"))
        parts = [record.state, f"step {steps_of(record)}"]
        rewards = [metric for metric in metrics if metric.key == SHORT_KEYS["reward"]]
        parts += [f"{metric.behavior} reward {number(metric.value)}" for metric in rewards]
        now = time.monotonic()
        if record.step != self.step and now > self.read_at:
            self.speed = max(0.0, (record.step - self.step) / (now - self.read_at))
            self.step, self.read_at = record.step, now
        elif now - self.read_at > 10 * REFRESH_SECONDS:
            self.speed = 0.0
        parts += [f"{self.speed:,.0f} steps/s", f"{simulators} simulator{'' if simulators == 1 else 's'}"]
        return frozenset((metric.behavior, metric.step) for metric in metrics if metric.behavior), "   ".join(parts)


def _print_all(client: Client, record: Run, events: Events, *, keep_waiting: bool, as_json: bool) -> None:
    """Print events, and progress unless as JSON, until the event stream ends.

    On a terminal the last line is rewritten each second. Elsewhere (a file, the log of a CI job) each summary of the
    trainer has a line with its time.
    Raises RunStalled when the run continues only if a person acts, unless `keep_waiting`.
    """
    rewrite = sys.stdout.isatty() and not as_json
    progress = _Progress(record.step, time.monotonic())
    printed = ""
    summarised = frozenset[tuple[str, int]]()
    standstill = Standstill()
    newest_seq = 0  # the sequence number of the newest event that was printed
    next_look = 0.0
    while True:
        try:
            event = events.get(timeout=max(0.05, next_look - time.monotonic()))
        except queue.Empty:
            next_look = time.monotonic() + REFRESH_SECONDS
            past: list[Event] | None = None
            with suppress(ApiError):  # the server may be away for a moment; the progress line reports it
                record = client.runs.get(record.id)
                if record.needs_action and not keep_waiting:
                    # Requested, because the stream may be slower: past events come before the end.
                    past = list(client.events.list(record.id, after=newest_seq))
            if past is not None:
                if rewrite and printed:
                    click.echo("\r" + " " * len(printed) + "\r", nl=False)
                for event in past:
                    _print_event(event, as_json=as_json)
                raise RunStalled(record) from None
            if as_json:
                continue
            clock = f"{datetime.now(UTC).astimezone():%H:%M:%S}  "
            news = standstill.news(record)
            if news is not None:
                echo(("\n" if rewrite and printed else "") + clock + news)
            try:
                summary, line = progress.line(client, record)
            except ApiError as error:
                summary, line = summarised, f"(no answer: {error})"
            line = printable(line)
            if rewrite:
                click.echo(f"\r{line.ljust(len(printed))}", nl=False)
                printed = line
            elif summary != summarised:
                click.echo(clock + line)
                end_without_reader()
                summarised = summary
            continue
        if rewrite and printed:
            click.echo("\r" + " " * len(printed) + "\r", nl=False)
            printed = ""
        if isinstance(event, ApiError):
            raise event
        if event is None:
            return
        _print_event(event, as_json=as_json)
        newest_seq = event.seq


def _print_event(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json_line(event)
    else:
        echo(event_line(event))
    end_without_reader()


class Standstill:
    """Remembers the last reported reason why a run waits, so that each reason is reported once."""

    def __init__(self) -> None:
        self._reported = ""

    def news(self, run: Run) -> str | None:
        """Return the reason why a run waits, if that is new. A longer time of waiting is not new."""
        without_numbers = re.sub(r"[0-9.]+ (s|min|h)\b", "", run.waits_for or "")
        if without_numbers == self._reported:
            return None
        self._reported = without_numbers
        return f"{run.id} waits for: {run.waits_for}" if run.waits_for else None


def _collect(client: Client, run: str, events: Events, ended: threading.Event) -> None:
    try:
        for event in client.events.follow(run):
            events.put(event)
        events.put(None)
    except ApiError as error:
        events.put(error)
    except RuntimeError:  # httpx2: the command has ended, and closed its client in the middle of the stream
        if not ended.is_set():
            raise


def _ending(run: Run) -> str:
    parts = [f"{run.id} {ended_as(run)}", f"after {number(run.step)} steps"]
    if run.stop_reason:
        parts.append(f"({run.stop_reason}{': ' + run.stop_detail if run.stop_detail else ''})")
    return " ".join(parts)
