"""`ludus run`: queue, show and end runs. `ludus.cli.lifecycle` has the commands on live runs."""

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import click

from ludus.cli.client import connected, place, sending
from ludus.cli.diff import diff
from ludus.cli.ending import end_run, findings
from ludus.cli.files import Text, TextFile
from ludus.cli.follow import Waiting, await_end, wait, watch
from ludus.cli.lessons import COMMANDS as LESSONS
from ludus.cli.lifecycle import COMMANDS as LIFECYCLE
from ludus.cli.logs import logs, profile
from ludus.cli.metrics import metrics
from ludus.cli.mirror import mirror
from ludus.cli.options import (
    cancel_option,
    fail_on_warning_option,
    json_option,
    limit_option,
    overrides_option,
    priority_option,
    require_option,
    run_name_option,
    run_tag_option,
    timeout_option,
    wait_option,
)
from ludus.cli.render import (
    ago,
    echo,
    ended_as,
    event_line,
    fields,
    id_of,
    left_of,
    number,
    percent_of,
    print_answer,
    print_document,
    print_facts,
    print_table,
    span,
    speed_of,
    state_of,
    steps_of,
    table,
)
from ludus.cli.require import Requirement
from ludus.cli.series import series
from ludus.cli.tidy import COMMANDS as TIDYING
from ludus.client import Client, StoredConfig
from ludus.client.backoff import ServerBackoff
from ludus.metric_keys import SHORT_KEYS, full_key
from ludus.schemas import PlannedRun, Run, RunListed


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
    overrides: tuple[tuple[str, Any], ...],
    seed: int | None,
    validate_only: bool,
    idempotency_key: str | None,
    wait_: bool,
    cancel_on_interrupt: bool,
    fail_on_warning: bool,
    timeout: float | None,
    requirements: tuple[Requirement, ...],
    as_json: bool,
    **described: Any,
) -> None:
    """Queue a training run with the configuration in FILE (`-` is standard input)."""
    source = _configuration(file, stored)
    sent = "" if file is None else file.name
    changes = dict(overrides) if seed is None else {**dict(overrides), "seed": seed}
    with sending(sent):
        if validate_only:
            planned = client.runs.plan(source, overrides=changes, **described)
            print_answer(planned, partial(_show_plan, file=sent), as_json=as_json)
            return
        # All requests have the same idempotency key, so that the run is created once.
        key = str(uuid4()) if idempotency_key is None else idempotency_key
        queue = partial(client.runs.create, source, overrides=changes, idempotency_key=key, **described)
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
    ordering, wanted = _ordering(order_by, metrics)
    conditions = [filter_] if filter_ else []
    conditions += [f'state = "{state.upper()}"'] if state else []
    conditions += [f'tags = "{tag}"' for tag in tags]

    def show(runs: list[RunListed]) -> None:
        running = any(each.state == "RUNNING" for each in runs)
        waiting = any(each.waits_for for each in runs)
        headers = ["id", "name", "state", "reason", "steps", "done"]
        headers += ["simulators", "steps/s", "left"] if running else []
        headers += [*metrics, "created", "tags"]
        rows = [
            [
                *(each.id, each.name, ended_as(each), each.stop_reason, number(each.step), percent_of(each)),
                *((number(each.simulators), speed_of(each), left_of(each)) if running else ()),
                *(number(each.metrics.get(_key(metric))) for metric in metrics),
                *(ago(each.created_at), each.tags),
                *([each.waits_for] if waiting else ()),
            ]
            for each in runs
        ]
        print_table([*headers, "waits for"] if waiting else headers, rows)

    runs = list(client.runs.list(" AND ".join(conditions), ordering, limit, [_key(each) for each in wanted]))
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


def _ending_command(handler: Callable[[Client, str], Run]) -> Callable[..., None]:
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


for command in (*LIFECYCLE, *LESSONS, *TIDYING, wait, watch, logs, profile, diff, metrics, series, mirror):
    run.add_command(command)


def _key(metric: str) -> str:
    """Return the full key of a metric with an alias: `reward@max`, `Walker:reward`."""
    named, at, which = metric.partition("@")
    behavior, colon, key = named.rpartition(":")
    return f"{behavior}{colon}{full_key(key)}{at}{which}"


def _ordering(order_by: str, metrics: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the order in the server's form, and the metrics to request: the order is by the first one."""
    head, _, last = order_by.strip().rpartition(" ")
    name, direction = (head.strip(), last) if last.lower() in {"asc", "desc"} else (order_by.strip(), "asc")
    keys = {_key(metric): metric for metric in metrics}
    if _key(name) not in keys and name not in SHORT_KEYS and not set(name) & set("/:@"):
        return order_by, metrics  # a field of the run, or an error that the server reports
    first = keys.get(_key(name), name)
    return f"metric {direction}", (first, *(metric for metric in metrics if metric != first))


def _configuration(file: Text | None, stored: str | None) -> str | StoredConfig:
    if (file is None) == (stored is None):
        raise click.UsageError("name either a FILE or a stored configuration (--config NAME)")
    if file is not None:
        return file.content
    assert stored is not None
    name, _, version = stored.partition("@")
    if version and not version.isdecimal():
        raise click.UsageError(f"{version!r} in --config {stored} is not a version number")
    return StoredConfig(name, int(version) if version else None)


def _facts(client: Client, record: Run) -> list[tuple[str, object]]:
    connected_now = client.simulators.list(record.id, state="connected")
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
        ("simulators", f"{len(connected_now)} connected, {sum(each.agents for each in connected_now)} agents"),
        *_edge_collectors(client, record),
        ("bottleneck", _bottleneck(client, record)),
        *(("warning", finding) for finding in findings(client, record)),
        ("created", ago(record.created_at)),
        ("finished", ended and ago(ended)),
        ("trained for", length),
    ]


def _edge_collectors(client: Client, record: Run) -> Iterator[tuple[str, object]]:
    """Yield a line for each edge collector of the live attempt."""
    for each in client.runs.collectors(record.id) if record.finished_at is None else ():
        if each.kind == "edge" and each.joined_at is not None:
            facts = f"{each.host} ({each.address}), {each.simulators} simulators, joined {ago(each.joined_at)}"
            if each.lagged_at is not None:
                facts += f"; its network was too slow {ago(each.lagged_at)}, {each.waiting_bytes >> 20} MiB waited"
            yield f"edge collector {each.index}", facts


def _bottleneck(client: Client, record: Run) -> str | None:
    """Return what holds a run back in one sentence; None where nothing is measured."""
    found = client.runs.bottleneck(record.id) if record.state == "RUNNING" else None
    if found is None or found.cause is None:
        return None
    # A run that stands still has no speed of which a part would be lost.
    now, without = found.steps_per_second, found.steps_per_second_without
    gain = f"{now:,.0f} steps/s could be {without:,.0f} without that: " if now and without else ""
    return f"{found.message}. {gain}{found.advice}"


def _trained_on(client: Client, record: Run) -> str | None:
    """Return the software and hardware of the newest attempt in a line; `ludus run diff` compares all of it."""
    attempts = client.runs.attempts(record.id)
    found = (attempts[-1].fingerprint if attempts else None) or {}
    named = {"release": "Ludus", "python": "Python", "torch": "torch", "cuda": "CUDA"}
    parts = [f"{word} {found[name]}" for name, word in named.items() if found.get(name)]
    parts += [str(found["cpu"])] if found.get("cpu") else []
    parts += [", ".join(found["gpus"])] if found.get("gpus") else []
    return ", ".join(parts) or None
