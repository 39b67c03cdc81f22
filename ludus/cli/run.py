"""`ludus run`: queue, show, change, branch, rename and end runs, and set their environment parameters."""

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypedDict, Unpack
from uuid import uuid4

import click
import yaml

from ludus.cli.client import Failure, answering, connected, place, sending
from ludus.cli.config import stored_config
from ludus.cli.ending import end_run, ended_as, event_line, findings, left_of, percent_of, speed_of, state_of, steps_of
from ludus.cli.exits import OUTCOMES, Exit
from ludus.cli.files import Text, TextFile
from ludus.cli.follow import Waiting, await_end, wait, watch
from ludus.cli.options import (
    Requirement,
    assignment,
    cancel_option,
    fail_on_warning_option,
    json_option,
    limit_option,
    option,
    overrides_option,
    parsed,
    priority_option,
    read_yaml,
    require_option,
    run_name_option,
    run_tag_option,
    timeout_option,
    wait_option,
)
from ludus.cli.render import (
    ago,
    echo,
    fields,
    id_of,
    number,
    print_answer,
    print_document,
    print_facts,
    print_table,
    span,
    table,
)
from ludus.cli.run_data import diff, logs, metrics, mirror, profile, series
from ludus.client import TERMINAL_STATES, Client, NotSaved, WaitTimedOut
from ludus.client.backoff import ServerBackoff
from ludus.json_values import JsonObject
from ludus.metric_keys import SHORT_KEYS, full_key
from ludus.schemas import Amendments, EnvironmentParameters, PlannedRun, Run, RunListed


class Description(TypedDict):
    """The options of a new run that are not part of its configuration."""

    name: str | None
    tags: tuple[str, ...]
    priority: int


@click.group()
def run() -> None:
    """Create training runs, follow them, end them. RUN is an id, or a name: the newest run of that name."""


@run.command()
@click.argument("file", type=TextFile(), required=False)
@click.option("--config", "stored", help="Use a stored configuration, NAME or NAME@VERSION, instead of a file.")
@run_name_option
@run_tag_option
@overrides_option
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed of everything random, as `--set seed=N`.")
@priority_option
@click.option(
    "--owner",
    default="",
    help="Label: among the runs of one token, those of the owner with fewer runs in training go first.",
)
@click.option("--validate-only", is_flag=True, help="Only check; print the configuration with every default filled in.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Of several calls with the same KEY, as a retried job makes them, only the first creates a run.",
)
@wait_option
@cancel_option
@fail_on_warning_option
@timeout_option
@require_option
@json_option
@connected
def create(
    client: Client,
    *,
    file: Text | None,
    stored: str | None,
    overrides: tuple[tuple[str, object], ...],
    seed: int | None,
    validate_only: bool,
    idempotency_key: str | None,
    wait_: bool,
    cancel_on_interrupt: bool,
    fail_on_warning: bool,
    timeout: float | None,
    requirements: tuple[Requirement, ...],
    as_json: bool,
    owner: str,
    **described: Unpack[Description],
) -> None:
    """Queue a training run with the configuration in FILE (`-` is standard input)."""
    if (file is None) == (stored is None):
        raise click.UsageError("name either a FILE or a stored configuration (--config NAME)")
    source = stored_config(stored or "", f"--config {stored}") if file is None else file.content
    sent = "" if file is None else file.name
    changes = dict(overrides) if seed is None else {**dict(overrides), "seed": seed}
    with sending(sent):
        if validate_only:
            planned = client.runs.plan(source, overrides=changes, owner=owner, **described)
            print_answer(planned, partial(_show_plan, file=sent), as_json=as_json)
            return
        # All requests have the same idempotency key, so that the run is created once.
        key = str(uuid4()) if idempotency_key is None else idempotency_key
        queue = partial(client.runs.create, source, overrides=changes, idempotency_key=key, owner=owner, **described)
        backoff = ServerBackoff(timeout)
        created = queue() if timeout is None else backoff.persist(queue)
    print_answer(created, id_of, as_json=as_json)
    if wait_:
        waiting = Waiting(
            backoff.left, requirements, cancel_on_interrupt=cancel_on_interrupt, fail_on_warning=fail_on_warning
        )
        sys.exit(await_end(client, created.id, waiting))


def _show_plan(planned: PlannedRun, file: str) -> None:
    print_document(planned.config)
    for warning in planned.warnings:
        echo(f"{place(warning.line, file)}Warning: {warning.path}: {warning.message}", err=True)


@run.command("list")
@click.option("--filter", "filter_", default="", help="For instance: 'state = RUNNING AND tags = \"ci\"'.")
@click.option("--state", help="Short for --filter 'state = STATE'.")
@click.option("--tag", "tags", multiple=True, help="Short for --filter 'tags = TAG'. Can be given several times.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="[BEHAVIOR:]KEY[@max|@min]",
    help="A column with the newest value of a metric, or its highest or lowest: reward, reward@max, "
    "'Walker:Losses/Value Loss@min'. Can be given several times.",
)
@click.option(
    "--order-by", default="", help="A field or a metric, then asc or desc, as in 'reward@max desc'. [created_at desc]"
)
@limit_option("runs", 50)
@json_option
@connected
def list_(
    client: Client,
    *,
    filter_: str,
    state: str | None,
    tags: tuple[str, ...],
    metrics: tuple[str, ...],
    order_by: str,
    limit: int,
    as_json: bool,
) -> None:
    """List runs, newest first.

    \b
    ludus run list --tag sweep --metric reward --metric reward@max --order-by 'reward@max desc'
    """
    ordering, requested = _ordering(order_by, metrics)
    conditions = [filter_] if filter_ else []
    conditions += [f'state = "{state.upper()}"'] if state else []
    conditions += [f'tags = "{tag}"' for tag in tags]

    def show(runs: list[RunListed]) -> None:
        running = any(run.state == "RUNNING" for run in runs)
        waiting = any(run.waits_for for run in runs)
        headers = ["id", "name", "state", "reason", "steps", "done"]
        headers += ["simulators", "steps/s", "left"] if running else []
        headers += [*metrics, "created", "tags"]
        rows = [
            [
                *(run.id, run.name, ended_as(run), run.stop_reason, number(run.step), percent_of(run)),
                *((number(run.simulators), speed_of(run), left_of(run)) if running else ()),
                *(number(run.metrics.get(_key(metric))) for metric in metrics),
                *(ago(run.created_at), run.tags),
                *([run.waits_for] if waiting else ()),
            ]
            for run in runs
        ]
        print_table([*headers, "waits for"] if waiting else headers, rows)

    runs = list(client.runs.list(" AND ".join(conditions), ordering, limit, [_key(metric) for metric in requested]))
    print_answer(runs, show, as_json=as_json)


@run.command()
@click.argument("run")
@click.option("--config", "with_config", is_flag=True, help="Print the run's configuration only, as YAML.")
@json_option
@connected
def show(client: Client, *, run: str, with_config: bool, as_json: bool) -> None:
    """Show one run: state, newest metrics, simulators, newest events."""
    record = client.runs.get(run)
    if with_config:
        print_document(record.config)
        return
    metrics = client.metrics.list(record.id)

    def show(_: object) -> None:
        print_facts(_facts(client, record))
        if metrics:
            echo()
            table("behavior, metric=key, value, step", behavior=lambda each: each.behavior or "-")(metrics)
        events = list(client.events.list(record.id))[-8:]
        echo()
        for event in events:
            echo(event_line(event))

    print_answer({**vars(record), "metrics": metrics}, show, as_json=as_json)


def _ending_command(handler: Callable[[Client, str], Run]) -> Callable[..., object]:
    """Make a command of a handler that ends a run: it prints the run's state, and waits for the end with `--wait`."""

    @click.argument("run")
    @wait_option
    @timeout_option
    @json_option
    @connected
    @functools.wraps(handler)
    def command(client: Client, *, run: str, wait_: bool, timeout: float | None, as_json: bool) -> None:
        record = handler(client, run)
        print_answer(record, state_of, as_json=as_json)
        if wait_:
            sys.exit(await_end(client, record.id, Waiting(timeout)))

    return command


@run.command()
@_ending_command
def stop(client: Client, run: str) -> Run:
    """End a run with a final checkpoint and its models; one that has ended stays as it is."""
    return end_run(client, run, "stop")


@run.command()
@_ending_command
def cancel(client: Client, run: str) -> Run:
    """End a run at once: without a checkpoint; one that has ended stays as it is."""
    return end_run(client, run, "cancel")


for command in (wait, watch, logs, profile, diff, metrics, series, mirror):
    run.add_command(command)


def _key(metric: str) -> str:
    """Return the full key of a metric with an alias: `reward@max`, `Walker:reward`."""
    named, sign, which = metric.partition("@")
    behavior, colon, key = named.rpartition(":")
    return f"{behavior}{colon}{full_key(key)}{sign}{which}"


def _ordering(order_by: str, metrics: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the order in the server's form, and the metrics to request: the order is by the first one."""
    head, _, last = order_by.strip().rpartition(" ")
    name, direction = (head.strip(), last) if last.lower() in {"asc", "desc"} else (order_by.strip(), "asc")
    keys = {_key(metric): metric for metric in metrics}
    if _key(name) not in keys and name not in SHORT_KEYS and not set(name) & set("/:@"):
        return order_by, metrics  # a field of the run, or an error that the server reports
    first = keys.get(_key(name), name)
    return f"metric {direction}", (first, *(metric for metric in metrics if metric != first))


def _facts(client: Client, record: Run) -> list[tuple[str, object]]:
    connected_now = client.simulators.list(record.id, state="connected")
    agents = sum(simulator.agents for simulator in connected_now)
    ended = record.finished_at
    started = record.started_at
    length = None if started is None or ended is None else span((ended - started).total_seconds())
    return [
        *fields(record, "id, name, project, state, waits_for", state=ended_as),
        ("priority", record.priority or None),
        ("continues", record.continues),
        ("continued by", ", ".join(record.continued_by)),
        *fields(record, "owner, token_id, asked for=intent, reason=stop_reason, detail=stop_detail, tags"),
        ("configuration", record.config_name and f"{record.config_name}@{record.config_version}"),
        ("seed", record.seed),
        ("steps", steps_of(record) + (f" ({done})" if (done := percent_of(record)) else "")),
        ("steps/s", speed_of(record)),
        ("left", left_of(record)),
        ("attempts", record.attempt),
        ("learning team", record.self_play and str(record.self_play.learning_team)),
        (
            "training Elo",
            record.self_play and ", ".join(f"{name} {elo:.1f}" for name, elo in record.self_play.elo.items()),
        ),
        ("trained on", _trained_on(client, record)),
        ("simulators", f"{len(connected_now)} connected, {agents} agents"),
        *_edge_collectors(client, record),
        ("bottleneck", _bottleneck(client, record)),
        *(("warning", finding) for finding in findings(client, record)),
        ("created", ago(record.created_at)),
        ("finished", ended and ago(ended)),
        ("trained for", length),
    ]


def _edge_collectors(client: Client, record: Run) -> Iterator[tuple[str, object]]:
    """Yield a line for each edge collector of the live attempt."""
    for collector in client.runs.collectors(record.id) if record.finished_at is None else ():
        if collector.kind == "edge" and collector.joined_at is not None:
            facts = f"{collector.host} ({collector.address}), {collector.simulators} simulators"
            facts += f", joined {ago(collector.joined_at)}"
            if collector.lagged_at is not None:
                facts += (
                    f"; its network was too slow {ago(collector.lagged_at)}, {collector.waiting_bytes >> 20} MiB waited"
                )
            yield f"edge collector {collector.index}", facts


def _bottleneck(client: Client, record: Run) -> str | None:
    """Return what holds a run back in one sentence; None where nothing is measured."""
    bottleneck = client.runs.bottleneck(record.id) if record.state == "RUNNING" else None
    if bottleneck is None or bottleneck.cause is None:
        return None
    # A run that stands still has no speed of which a part would be lost.
    now, without = bottleneck.steps_per_second, bottleneck.steps_per_second_without
    gain = f"{now:,.0f} steps/s could be {without:,.0f} without that: " if now and without else ""
    return f"{bottleneck.message}. {gain}{bottleneck.advice}"


def _trained_on(client: Client, record: Run) -> str | None:
    """Return the software and hardware of the newest attempt in a line; `ludus run diff` compares all of it."""
    attempts = client.runs.attempts(record.id)
    fingerprint = (attempts[-1].fingerprint if attempts else None) or {}
    named = {"release": "Ludus", "python": "Python", "torch": "torch", "cuda": "CUDA"}
    parts = [f"{word} {fingerprint[name]}" for name, word in named.items() if fingerprint.get(name)]
    parts += [str(fingerprint["cpu"])] if fingerprint.get("cpu") else []
    parts += [", ".join(fingerprint["gpus"])] if fingerprint.get("gpus") else []
    return ", ".join(parts) or None


_KEY = re.compile(r'"([^"]+)"|([^."]+)')


@run.command()
@click.argument("run")
@click.option("--wait", "wait_", is_flag=True, help="Wait until the run is PAUSED, and its worker free.")
@timeout_option
@json_option
@connected
def pause(client: Client, *, run: str, wait_: bool, timeout: float | None, as_json: bool) -> None:
    """Pause a run: save a checkpoint and free its worker. Its simulators wait until `ludus run resume`."""
    record = client.runs.pause(run)
    if wait_ and record.state != "PAUSED":
        try:
            record = client.runs.wait(record.id, ["PAUSED"], timeout)
        except WaitTimedOut as error:
            raise Failure(f"{error} (--timeout); it will still pause", Exit.TIMED_OUT) from error
    print_answer(record, state_of, as_json=as_json)
    if wait_ and record.state in OUTCOMES:  # it ended first
        sys.exit(OUTCOMES[record.state])


@run.command()
@click.argument("run")
@click.option(
    "--set",
    "changes",
    type=assignment,
    multiple=True,
    help="Change a behavior's key first, as in Walker.hyperparameters.learning_rate=1e-4. Can be given several times.",
)
@answering(state_of)
def resume(client: Client, *, run: str, changes: tuple[tuple[str, object], ...]) -> Run:
    """Resume a paused run from its newest checkpoint."""
    return client.runs.resume(run, nested(changes) or None)


@run.command()
@click.argument("run")
@timeout_option
@answering(lambda answer: str(answer["checkpoint_id"]))
def checkpoint(client: Client, *, run: str, timeout: float | None) -> dict[str, str]:
    """Save a checkpoint of a running run now, wait until it is stored, and print its id. The run continues.

    Without --timeout the command waits up to a minute.
    """
    try:
        return {"checkpoint_id": client.checkpoints.save(run, 60.0 if timeout is None else timeout)}
    except NotSaved as error:
        raise Failure(f"{error} (--timeout allows more time)", Exit.REFUSED) from error


_RECORD: Final = "simulators.record"


@run.command("set")
@click.argument("run")
@click.argument("changes", nargs=-1, type=assignment, required=True, metavar="NAME.KEY=VALUE...")
@json_option
@connected
def set_(client: Client, *, run: str, changes: tuple[tuple[str, object], ...], as_json: bool) -> None:
    """Change hyperparameters or max_steps of behaviors in a RUN that has not ended, or what it records.

    \b
    ludus run set RUN Walker.hyperparameters.learning_rate=1e-4 Walker.max_steps=800000
    ludus run set RUN simulators.record=true

    A running run uses them from its next update. Put a behavior's name with a dot into double quotes.
    `simulators.record=true` records all sessions of simulators from now on, a number that share of them
    (`simulators.record.share`, `.max_seconds` and so on: the keys of `ludus config reference`).
    """

    def show(record: Run) -> None:
        _show_changes(client.runs.amendments(record.id), slice(-1, None))

    record: Any = None
    for path, value in changes:
        if path == _RECORD:
            record = value
        elif path.startswith(f"{_RECORD}."):
            record = {**(record if isinstance(record, dict) else {}), path.removeprefix(f"{_RECORD}."): value}
    behaviors = nested(change for change in changes if not f"{change[0]}.".startswith(f"{_RECORD}."))
    print_answer(client.runs.change(run, behaviors or None, record=record), show, as_json=as_json)


def _show_changes(answer: Amendments, part: slice = slice(None)) -> None:
    if not answer.amendments:
        echo("Nothing in the run's configuration was changed.")
    for amendment in answer.amendments[part]:
        for change in amendment.changes:
            echo(f"{amendment.seq}  {change.path}: {change.old} -> {change.new}  ({ago(amendment.created_at)})")
        echo(f"   {'the trainer uses it' if amendment.applied else 'the trainer has not applied it yet'}")


@run.command()
@click.argument("run")
@answering(_show_changes)
def changes(client: Client, *, run: str) -> Amendments:
    """Show the changes of a run's configuration since its creation."""
    return client.runs.amendments(run)


@run.command()
@click.argument("run")
@option("--checkpoint", default="latest", help="Id of the checkpoint to start from.")
@click.option(
    "--continue",
    "go_on",
    is_flag=True,
    help="Continue exactly where the checkpoint was taken, instead of at step 0 with its networks.",
)
@click.option("--name", help="Name of the new run.")
@click.option("--tag", "tags", multiple=True, help="Tag of the new run. Can be given several times.")
@overrides_option
@priority_option
@wait_option
@timeout_option
@require_option
@json_option
@connected
def branch(
    client: Client,
    *,
    run: str,
    overrides: tuple[tuple[str, object], ...],
    wait_: bool,
    timeout: float | None,
    requirements: tuple[Requirement, ...],
    as_json: bool,
    **described: Unpack[Description],
) -> None:
    """Queue a new run with the configuration of RUN, changed by --set, that starts from a checkpoint of RUN."""
    created = client.runs.branch(run, overrides=dict(overrides), **described)
    print_answer(created, id_of, as_json=as_json)
    if wait_:
        sys.exit(await_end(client, created.id, Waiting(timeout, requirements)))


_GROUPS: Final = frozenset({"hyperparameters", "divergence"})
"""Keys of a behavior's section whose own keys change one by one."""


def nested(assignments: Iterable[tuple[str, object]]) -> dict[str, JsonObject]:
    """Return changes by behavior. Raises UsageError where a path does not name a behavior and a key of it."""
    sections: dict[str, JsonObject] = {}
    for path, value in assignments:
        keys = [quoted or plain for quoted, plain in _KEY.findall(path)]
        keys = keys[1:] if keys[:1] == ["behaviors"] and len(keys) > 2 else keys
        if not 2 <= len(keys) <= 3 or (len(keys) == 3 and keys[1] not in _GROUPS):
            message = f"{path!r} names no key of a behavior; write NAME.max_steps or NAME.hyperparameters.learning_rate"
            raise click.UsageError(message)
        section = sections.setdefault(keys[0], {})
        for key in keys[1:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = value
    return sections


CHANGES = frozenset({"lesson_changed", "parameter_changed"})
"""Types of events that change a parameter."""


@parsed("value")
def value_type(text: str) -> object:
    """Read a value as YAML."""
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        raise ValueError(f"{text!r} is not valid YAML") from None


def _show_parameters(answer: EnvironmentParameters, *, ended: bool = False) -> None:
    for parameter in answer.parameters:
        echo(f"{parameter.name}: {parameter.waits_for}")
    undone = "the run ended before that" if ended else "the trainer has not done it yet"
    for edit in answer.pending:
        change = ", ".join(f"{key} {value}" for key, value in edit.change.items())
        echo(f"{edit.parameter}: {change} was asked for; {undone}")
    if not answer.parameters:
        echo("The run has no environment parameters.")


@run.command()
@click.argument("run")
@json_option
@connected
def lessons(client: Client, *, run: str, as_json: bool) -> None:
    """Show the present lesson of each environment parameter and the criterion that it waits for.

    Of a run that has ended: the last lesson of each, and the changes before it.
    """
    record = client.runs.get(run)
    ended = record.state in TERMINAL_STATES

    def show(found: EnvironmentParameters) -> None:
        _show_parameters(found, ended=ended)
        for event in client.events.list(record.id) if ended and found.parameters else ():
            if event.type in CHANGES:
                echo(event_line(event))

    print_answer(client.environment_parameters.get(record.id), show, as_json=as_json)


@run.command("set-lesson")
@click.argument("run")
@click.argument("parameter")
@click.argument("lesson")
@answering(_show_parameters)
def set_lesson(client: Client, *, run: str, parameter: str, lesson: str) -> EnvironmentParameters:
    """Begin another LESSON of a PARAMETER, by its name or its number (`2` is the second), in a live RUN."""
    return client.environment_parameters.set_lesson(run, parameter, lesson)


@run.command("set-parameter")
@click.argument("run")
@click.argument("parameter")
@click.argument("value", type=value_type)
@answering(_show_parameters)
def set_parameter(client: Client, *, run: str, parameter: str, value: float | JsonObject) -> EnvironmentParameters:
    """Give the present lesson of a PARAMETER another VALUE in a live RUN: a number, or a sampler as YAML.

    Write `--` before a negative number.
    """
    return client.environment_parameters.set_value(run, parameter, value)


@run.command()
@click.argument("run")
@click.argument("name")
@answering(lambda renamed: f"{renamed.id} {renamed.name}")
def rename(client: Client, *, run: str, name: str) -> Run:
    """Give RUN another NAME, also after its end."""
    return client.runs.rename(run, name)


@run.command()
@click.argument("run")
@click.argument("tags", nargs=-1)
@click.option("--remove", "removed", multiple=True, metavar="TAG", help="A tag to remove. Can be given several times.")
@answering(lambda tagged: ", ".join(tagged.tags))
def tag(client: Client, *, run: str, tags: tuple[str, ...], removed: tuple[str, ...]) -> Run:
    """Add TAGS to RUN, and remove others, also after its end. Prints all tags of the run."""
    if not tags and not removed:
        raise click.UsageError("name at least one tag to add, or --remove TAG")
    return client.runs.tag(run, tags, removed)


@run.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(client: Client, *, runs: tuple[str, ...], yes: bool) -> None:
    """Delete RUNS that have ended, with their metrics, events, logs and checkpoints.

    A run is kept, and the error names the reason, while an alias stands for one of its checkpoints, another run began
    with one or judged one, a checkpoint is pinned, or it plays on a shared ladder.
    """
    records = [client.runs.get(run) for run in runs]  # all names first: after a deletion one would mean another run
    if not yes:
        for record in records:
            echo(f"{record.id} {record.name} {record.state}", err=True)
        count = f"{len(records)} run{'s' if len(records) > 1 else ''}"
        click.confirm(f"Delete {count}? This cannot be undone", abort=True, err=True)
    for record in records:
        client.runs.delete(record.id)
        echo(f"{record.id} deleted")
