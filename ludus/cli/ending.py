"""Runs in words: state, progress, events; and their end: commands ask for it, and say why it does not come."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Literal

from ludus.cli.render import number, printable, span
from ludus.client import TERMINAL_STATES, ApiError, Client, ProblemAnswer
from ludus.client.backoff import ServerBackoff
from ludus.schemas import Event, Run, RunSummary

CONFLICT: Final = 409
CANCEL_SECONDS: Final = 10.0
"""Time that an interrupted command gives a server that does not answer to take the cancellation of its run."""
LAST_EVENTS: Final = 3
_NUMBERS = re.compile(r"\d+(\.\d+)?")


def state_of(run: Run) -> str:
    """Return the state of a run, and the state that was requested."""
    doing = f", {run.intent} asked for" if run.intent else ""
    return f"{run.id} {run.state}{doing}"


def ended_as(run: RunSummary) -> str:
    """Return the state of a run; of one that has ended with findings about its learning, that it did so."""
    return f"{run.state}, with warnings" if run.findings and run.finished_at is not None else run.state


def event_line(event: Event, run_name: str | None = None) -> str:
    """Render an event for people; among those of other runs, with the name of its run."""
    mark = {"warning": "! ", "error": "!! "}.get(event.level, "")
    named = "" if run_name is None else f"{run_name:<20}  "
    return printable(f"{event.at.astimezone():%H:%M:%S}  {named}{event.type:<22}  {mark}{event.message}")


def steps_of(run: RunSummary) -> str:
    """Return the agent steps of a run, and those at which it is complete."""
    return number(run.step) if run.max_steps is None else f"{number(run.step)} of {number(run.max_steps)}"


def percent_of(run: RunSummary) -> str | None:
    """Return how much of its steps a run has done; None where it has no number of them."""
    return f"{100 * run.step / run.max_steps:.0f}%" if run.max_steps else None


def speed_of(run: RunSummary) -> str | None:
    """Return the agent steps per second of a run; None where they are unknown."""
    return None if run.steps_per_second is None else f"{run.steps_per_second:,.0f}"


def left_of(run: RunSummary) -> str | None:
    """Return the time until a run is complete, as estimated; None where that is unknown."""
    return None if run.finishes_at is None else span((run.finishes_at - datetime.now(UTC)).total_seconds())


def end_run(client: Client, run: str, way: Literal["stop", "cancel"]) -> Run:
    """Stop or cancel a run. One that has ended meanwhile is returned as it is: its end is what was asked for."""
    try:
        return client.runs.stop(run) if way == "stop" else client.runs.cancel(run)
    except ProblemAnswer as error:
        if error.status != CONFLICT or (record := client.runs.get(run)).state not in TERMINAL_STATES:
            raise
        return record


def cancel_interrupted(client: Client, run: str) -> str:
    """Cancel the run of a command that is interrupted; return a sentence that says whether that was possible."""
    try:
        ended = ServerBackoff(CANCEL_SECONDS).persist(lambda: end_run(client, run, "cancel"))
    except ApiError as error:
        return f"{run} could not be cancelled and may go on: {error}"
    return f"{ended.id} is {ended.state}" + (f", {ended.intent} asked for" if ended.intent else "")


def findings(client: Client, run: Run) -> Iterator[str]:
    """Yield a sentence for each finding about a run's learning."""
    for finding in client.runs.health(run.id).findings if run.findings else ():
        subject = "" if finding.behavior is None else f"{finding.behavior}: "
        yield f"{subject}{finding.message} {finding.remedy} (since step {number(finding.since_step)})"


def causes(client: Client, run: Run) -> Iterator[str]:
    """Yield sentences about why a run has not ended: what it waits for, its health, its speed, its bad events."""
    if run.waits_for:
        yield f"It waits for: {run.waits_for}"
    with suppress(ApiError):  # a cause more or less: the outcome is known
        yield from (f"Warning: {finding}" for finding in findings(client, run))
    with suppress(ApiError):
        bottleneck = client.runs.bottleneck(run.id) if run.state == "RUNNING" else None
        if bottleneck is not None and bottleneck.cause is not None:
            yield f"At {number(run.step)} steps: {bottleneck.message}; {bottleneck.advice}"
    with suppress(ApiError):
        bad = [event for event in client.events.list(run.id) if event.level in {"warning", "error"}]
        # The same sentence about another simulator, or after other seconds, is no news.
        times = Counter(_NUMBERS.sub("", event.message) for event in bad)
        newest = {_NUMBERS.sub("", event.message): event.message for event in bad}
        # What a game says before it crashes is also why its simulator left.
        kinds = [kind for kind in newest if not any(kind in longer for longer in newest if longer != kind)]
        for kind in kinds[-LAST_EVENTS:]:
            yield f"Event{f' ({times[kind]} times)' if times[kind] > 1 else ''}: {newest[kind]}"
