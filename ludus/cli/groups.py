"""Groups of runs on the command line, and the score of each run: what `ludus compare` compares."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import click

from ludus.cli.client import Failure
from ludus.cli.exits import Exit
from ludus.cli.require import unknown_metric
from ludus.client import TERMINAL_STATES, Client
from ludus.names import TAG_RULE, is_tag
from ludus.schemas import RunSummary
from ludus.schemas.states import RunKind


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seeds."""

    text: str
    """The group, as the user wrote it."""
    runs: Sequence[RunSummary]
    left_out: Mapping[str, int]
    """State -> number of the runs with the tag that do not count: only those that SUCCEEDED do."""


@dataclass(frozen=True)
class Score:
    """The score of a run."""

    id: str
    name: str
    seed: int
    step: int
    """Agent steps that it trained."""
    score: float


def find_group(client: Client, text: str) -> Group:
    """Return the runs of a group: `RUN,RUN,...`, each an id or a name; `tag:TAG`; `experiment:NAME`, its best trial, or
    `experiment:NAME/TRIAL`.

    Another kind of group is another `case` here: all that follows takes the runs. Raises Failure for runs that have not
    ended and where none is left, and click.UsageError for a text that names no group.
    """
    kind, colon, name = text.partition(":")  # a run's name has no colon
    match kind if colon else None:
        case None:
            return Group(text, _named(client, text), {})
        case "tag":
            return Group(text, *_tagged(client, name))
        case "experiment":
            return Group(text, _of_trial(client, name), {})
        case _:
            raise click.UsageError(f"{text!r} names no group of runs; write RUN,RUN,..., tag:TAG or experiment:NAME")


def _named(client: Client, text: str) -> list[RunSummary]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.UsageError(f"{text!r} has a run without a name; write RUN,RUN,... or tag:TAG")
    runs = dict[str, RunSummary]()
    for name in names:
        run = client.runs.get(name)
        if run.state not in TERMINAL_STATES:
            raise Failure(f"{name} is {run.state}: its score is not known before its end (ludus run wait)", Exit.USAGE)
        if run.id in runs:
            raise Failure(f"{text!r} has the run {run.id} twice: the same seed again says nothing new", Exit.USAGE)
        runs[run.id] = run
    return [*runs.values()]


def _of_trial(client: Client, text: str) -> list[RunSummary]:
    name, _, number = text.partition("/")
    if number and not number.isdecimal():
        raise click.UsageError(f"{number!r} is no trial's number; write experiment:{name}/3")
    if number:
        trial = next(client.experiments.trials(name, f"number = {number}"), None)
    else:
        trial = client.experiments.get(name).best
    if trial is None:
        missing = f"no trial {number}" if number else "no complete trial yet"
        raise Failure(f"experiment {name} has {missing} (ludus experiment trials {name})", Exit.USAGE)
    if not trial.runs:
        raise Failure(f"trial {trial.number} of {name} has no run: {trial.detail}", Exit.USAGE)
    return _named(client, ",".join(run.run_id for run in trial.runs))


def _tagged(client: Client, tag: str) -> tuple[Sequence[RunSummary], Counter[str]]:
    if not is_tag(tag):
        raise click.UsageError(f"{tag!r} is not a tag: {TAG_RULE}")
    tagged = [
        run
        for run in client.runs.list(f"tags = {json.dumps(tag, ensure_ascii=False)}")
        if run.kind in {RunKind.TRAIN, RunKind.CLONE}
    ]
    runs = [run for run in reversed(tagged) if run.state == "SUCCEEDED"]  # the oldest first
    left_out = Counter[str](run.state for run in tagged if run.state != "SUCCEEDED")
    if not tagged:
        raise Failure(f"no run has the tag {tag!r}", Exit.USAGE)
    if not runs:
        raise Failure(f"no run with the tag {tag!r} has succeeded: {counted(left_out)}", Exit.USAGE)
    return runs, left_out


def counted(states: Mapping[str, int]) -> str:
    """Write numbers of runs by their states: `2 RUNNING, 1 FAILED`."""
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def scores_of(client: Client, runs: Sequence[RunSummary], behavior: str | None, key: str, last: int) -> list[Score]:
    """Return the mean of a metric, by its whole name, over the last points of each run.

    Raises Failure where a run does not have the metric, has it for several behaviors while none is named, or has a
    point there that is not a number: the mean of the others would be one of another time.
    """
    scores = []
    for run in runs:
        tails = client.metrics.tail(run.id, key, behavior, last)
        values = [value for tail in tails for value in tail.values if value is not None]
        if not tails:
            problem = unknown_metric(behavior, key, client.metrics.list(run.id))
        elif len(tails) > 1:
            behaviors = ", ".join(tail.behavior for tail in tails)
            problem = f"several behaviors have {key} ({behaviors}); write BEHAVIOR:KEY"
        elif len(values) < len(tails[0].values):
            count = len(tails[0].values)
            problem = f"{count - len(values)} of its last {count} values of {key} are not numbers"
        else:
            scores.append(Score(run.id, run.name, run.seed, run.step, fmean(values)))
            continue
        raise Failure(f"{run.name} ({run.id}) has no score: {problem}", Exit.NO_METRIC)
    return scores
