"""`ludus run metrics | series | diff | logs | profile | mirror`: the data of runs."""

import csv
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ludus.cli import exits
from ludus.cli.client import Failure, connected, writing
from ludus.cli.exits import INTERRUPTED, OUTCOMES, Exit
from ludus.cli.options import FOLDER, json_option, option
from ludus.cli.render import LINES, echo, end_without_reader, number, print_answer, print_json, print_table, table
from ludus.cli.require import no_metric
from ludus.client import TERMINAL_STATES, Client
from ludus.client.backoff import ServerBackoff
from ludus.json_values import JsonObject
from ludus.metric_keys import full_key
from ludus.mlagents.results import Folder, Mirror
from ludus.mlagents.results.folder import ResultsUnusable
from ludus.schemas import RunListed, Series


@click.command()
@click.argument("run")
@click.option(
    "--parquet",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every point of every metric to a Parquet file, which pandas and polars read.",
)
@json_option
@connected
def metrics(client: Client, *, run: str, file: Path | None, as_json: bool) -> None:
    """Show the newest value of each metric of RUN, or download all of them.

    \b
    ludus run metrics nightly
    ludus run metrics nightly --parquet nightly.parquet
    """
    if file is None:
        show = table("behavior, key, step, value", behavior=lambda metric: metric.behavior or "-")
        print_answer(client.metrics.list(run), show, as_json=as_json)
        return
    with writing(file):
        client.metrics.download(run, file)
    print_answer({"file": str(file)}, lambda _: echo(str(file)), as_json=as_json)


TABLE_POINTS, POINTS = 20, 300
"""Entries of each series, unless the user names a number: in a table, and in CSV and JSON."""


@dataclass(frozen=True)
class Row:
    """One entry of a series."""

    run: str
    behavior: str
    """Empty for the run as a whole."""
    key: str
    step: int
    time: datetime | None
    mean: float | None
    """None where no point is a number; the same for minimum and maximum."""
    minimum: float | None
    maximum: float | None
    count: int
    """Number of points."""


COLUMNS: Final = [column.name for column in fields(Row)]


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--metric", "keys", multiple=True, required=True, help="Key, or `reward`, `length`. Can be given several times."
)
@click.option("--behavior", help="Only metrics of this behavior; '' is the run as a whole. [all]")
@click.option(
    "--points",
    type=click.IntRange(1, 5000),
    help=f"Longest series; where there are more points, an entry stands for several. [{TABLE_POINTS}; "
    f"{POINTS} in CSV and JSON]",
)
@click.option("--from-step", type=click.IntRange(0), help="Only points from this step on.")
@click.option("--to-step", type=click.IntRange(0), help="Only points up to this step.")
@click.option("--common-steps", is_flag=True, help="Entries of all series cover the same steps, up to the one shown.")
@click.option(
    "--with-predecessors",
    is_flag=True,
    help="A run that continues others begins with their points, up to the checkpoints that were taken over.",
)
@click.option("--csv", "csv_file", metavar="FILE", help="Write CSV to FILE; `-` is standard output.")
@json_option
@connected
def series(
    client: Client,
    *,
    runs: tuple[str, ...],
    keys: tuple[str, ...],
    behavior: str | None,
    points: int | None,
    from_step: int | None,
    to_step: int | None,
    common_steps: bool,
    with_predecessors: bool,
    csv_file: str | None,
    as_json: bool,
) -> None:
    """Show metrics of RUNs over time, each in a line per entry: mean, minimum, maximum and number of its points.

    \b
    ludus run series nightly-1 nightly-2 --metric reward --metric Policy/Entropy
    ludus run series nightly --metric reward --from-step 1000000 --points 5000 --csv reward.csv
    """
    if csv_file is not None and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    names = {client.runs.get(run).id: run for run in runs}
    full_keys = [full_key(key) for key in keys]
    curves = client.metrics.compare(
        list(names),
        full_keys,
        behavior,
        points or (TABLE_POINTS if csv_file is None and not as_json else POINTS),
        from_step=from_step,
        to_step=to_step,
        common_steps=common_steps,
        with_predecessors=with_predecessors,
    )
    if missing := set(full_keys) - {series.key for series in curves}:
        metrics = [metric for run in names for metric in client.metrics.list(run)]
        for key in sorted(missing - {metric.key for metric in metrics}):
            echo(f"{key}: {no_metric(key, metrics)}", err=True)
    if as_json:
        print_json(curves)
        return
    rows = _rows(curves, names)
    if csv_file is None:
        shown = [
            [
                *(row.run, row.behavior or "-", row.key, number(row.step)),
                row.time and f"{row.time.astimezone():%Y-%m-%d %H:%M:%S}",
                *(number(value) for value in (row.mean, row.minimum, row.maximum, row.count)),
            ]
            for row in rows
        ]
        print_table(COLUMNS, shown)
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(value.isoformat() if isinstance(value, datetime) else value for value in astuple(row))
    if csv_file == "-":
        echo(text.getvalue(), nl=False, kept=LINES)
        return
    with writing(csv_file):
        Path(csv_file).write_text(text.getvalue(), encoding="utf-8")


def _rows(curves: Sequence[Series], names: Mapping[str, str]) -> Iterator[Row]:
    """Iterate over the entries that have points. `names`: what the user called each run, by its id."""
    for series in curves:
        columns = (series.steps, series.times, series.values, series.minima, series.maxima, series.counts)
        for entry in zip(*columns, strict=True):
            row = Row(names[series.run_id], series.behavior, series.key, *entry)
            if row.count:
                yield row


MISSING = "-"


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--all", "everything", is_flag=True, help="Show metrics and fingerprints that are equal, too.")
@json_option
@connected
def diff(client: Client, *, runs: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Show how RUNs differ: in their resolved configurations, their newest metrics, and their fingerprints.

    The fingerprint is that of the newest attempt: release and commit of Ludus, libraries, hardware; and the names and
    versions of the simulators.
    """
    comparison = client.runs.compare(runs)
    compared = comparison.runs
    if len(runs) < 2:
        raise click.UsageError("name two runs or more")
    configuration = {key.path: key.values for key in comparison.differing}
    metrics = _by_key(
        [{f"{m.behavior} {m.key}".strip(): m.value for m in client.metrics.list(run.id)} for run in compared]
    )
    fingerprints = _by_key([_fingerprint(client, run) for run in compared])
    if not everything:
        metrics, fingerprints = (
            {key: values for key, values in by_key.items() if any(value != values[0] for value in values)}
            for by_key in (metrics, fingerprints)
        )
    if as_json:
        plain = [{"id": run.id, "name": run.name, "state": run.state, "step": run.step} for run in compared]
        print_json({"runs": plain, "config": configuration, "metrics": metrics, "fingerprint": fingerprints})
        return
    distinct = len({run.name for run in compared}) == len(compared)
    names = [run.name if distinct else run.id for run in compared]
    rows = [(field, *(getattr(run, field) for run in compared)) for field in ("id", "state", "stop_reason")]
    print_table(["run", *names], [*rows, ("steps", *(number(run.step) for run in compared))])
    tables: list[tuple[str, dict[str, tuple[Any, ...]], Callable[[Any], str]]] = [
        ("configuration", configuration, _shown),
        ("metric", metrics, number),
        ("fingerprint", fingerprints, _shown),
    ]
    for title, differing, write in tables:
        echo()
        if differing:
            rows = [
                (key, *(MISSING if value is None else write(value) for value in values))
                for key, values in differing.items()
            ]
            print_table([title, *names], rows)
        else:
            echo(f"{title}: no difference")


def _by_key(records: Sequence[Mapping[str, object]]) -> dict[str, tuple[Any, ...]]:
    """Return the values of all records by key; None where a record does not have it."""
    return {
        key: tuple(record.get(key) for record in records)
        for key in sorted({key for record in records for key in record})
    }


def _fingerprint(client: Client, run: RunListed) -> JsonObject:
    """Return the software and hardware of the newest attempt, and the kinds of simulators that have played."""
    attempts = client.runs.attempts(run.id)
    facts = dict((attempts[-1].fingerprint or {}) if attempts else {})
    kinds = Counter(simulator.client for simulator in client.simulators.list(run.id) if simulator.client)
    return facts | ({"simulators": sorted(kinds)} if kinds else {})


def _shown(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


REFRESH_SECONDS = 1.0
PROFILE_SECONDS = 120.0
"""How long a profile may take beyond the time that it samples: a little longer than the worker gives py-spy."""


@click.command()
@click.argument("run")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt. [the newest with a log]")
@click.option("--name", help="Name of the log. [trainer.log if there is one]")
@click.option("--tail", type=click.IntRange(min=0), metavar="BYTES", help="Only the last N bytes.")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the run has ended.")
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
    record = client.runs.get(run)
    stored = client.logs.list(record.id)
    if as_json:
        print_json(stored)
        return
    if list_:
        for log in stored:
            echo(f"{log.attempt}  {log.name}  {log.size}")
        return
    fitting = [log for log in stored if attempt in {None, log.attempt} and name in {None, log.name}]
    if not fitting:
        names = ", ".join(f"{log.name} of attempt {log.attempt}" for log in stored) or "none yet"
        raise Failure(f"there is no such log; there is: {names}", Exit.REFUSED)
    newest = [log for log in fitting if log.attempt == fitting[-1].attempt]
    log = next((log for log in newest if log.name == "trainer.log"), newest[0])
    part = client.logs.read(record.id, log.attempt, log.name, tail=tail)
    backoff = ServerBackoff()
    while True:
        echo(part.text, nl=False, kept=LINES)
        end_without_reader()
        if part.next_offset >= part.size:
            if not follow or backoff.persist(partial(client.runs.get, record.id)).state in TERMINAL_STATES:
                return
            time.sleep(REFRESH_SECONDS)
        read_on = partial(client.logs.read, record.id, log.attempt, log.name, offset=part.next_offset)
        part = backoff.persist(read_on)


@click.command()
@click.argument("run")
@option("--seconds", type=click.IntRange(1, 300), default=10, help="How long stacks are sampled.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; RUN-profile-1.svg.")
@json_option
@connected
def profile(client: Client, *, run: str, seconds: int, output: Path | None, as_json: bool) -> None:
    """Sample the stacks of a run's trainer and collectors, and download the flame graph. The run goes on."""
    answer = client.runs.profile(run, seconds)
    backoff = ServerBackoff(answer.seconds + PROFILE_SECONDS)
    while not answer.answered:
        if backoff.over:  # a worker of an older release never answers
            raise Failure("the worker has not answered in time; it may be of an older release", Exit.TIMED_OUT)
        backoff.sleep(REFRESH_SECONDS)
        record = backoff.persist(partial(client.runs.get, answer.run_id))
        if record.attempt != answer.attempt or record.state != "RUNNING":
            raise Failure(f"the attempt ended before its profile was made; the run is {record.state}", Exit.REFUSED)
        answer = backoff.persist(partial(client.runs.get_profile, answer.run_id))
    if answer.log is None:
        raise Failure(f"there is no profile: {answer.problem}", Exit.REFUSED)
    target = output or Path(f"{answer.run_id}-{answer.log}")
    client.logs.download(answer.run_id, answer.attempt, answer.log, target)
    print_answer(answer, lambda _: echo(str(target)), as_json=as_json)


@click.command(epilog=exits.HELP)
@click.argument("run")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--once", is_flag=True, help="Copy the present state, and do not follow the run.")
@connected
def mirror(client: Client, *, run: str, folder: Path, once: bool) -> None:
    """Write the results of RUN to DIR as `mlagents-learn` does, and follow the run until it ends.

    \b
    ludus run mirror nightly results/nightly &
    tensorboard --logdir results

    Event files for TensorBoard, `configuration.yaml`, checkpoints and models. Interrupted, it continues
    when it is started again; a run that has ended is copied as a whole. The run itself does not change.
    """
    record = client.runs.get(run)
    target = Folder(folder)
    try:
        journal = target.read_journal()
        if journal is not None and record.id not in {journal.run, *journal.former}:
            raise Failure(f"{folder.as_posix()} has the results of run {journal.run}; name another folder", Exit.USAGE)
        began = record.created_at.timestamp()  # not the start of this command, which may be started again
        with Mirror(
            client, record, target, say=partial(echo, kept=LINES), began=began, server=client.server
        ) as mirrored:
            ended = _copy(mirrored, once=once)
    except ResultsUnusable as error:
        raise Failure(str(error), Exit.REFUSED) from error
    except OSError as error:
        raise Failure(f"the results cannot be written: {error}", Exit.REFUSED) from error
    except KeyboardInterrupt:
        echo(f"{record.id} continues; `ludus run mirror` resumes where it stopped", err=True)
        raise SystemExit(INTERRUPTED) from None
    if ended is not None:
        raise SystemExit(OUTCOMES[ended])


def _copy(mirrored: Mirror, *, once: bool) -> str | None:
    """Copy new results until the run has ended; return its final state, None with `once` before that."""
    backoff = ServerBackoff()
    while True:
        state = backoff.persist(mirrored.sync).state
        if state in TERMINAL_STATES:
            backoff.persist(mirrored.finish)
            return state
        if once:
            return None
        time.sleep(REFRESH_SECONDS)
