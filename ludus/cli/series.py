"""`ludus run series`: metrics of several runs over time, as a table, CSV or JSON."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option
from ludus.cli.render import LINES, echo, number, print_json, print_table
from ludus.cli.require import no_metric
from ludus.client import Client
from ludus.metric_keys import full_key
from ludus.schemas import Series

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
    wanted = [full_key(key) for key in keys]
    found = client.metrics.compare(
        list(names),
        wanted,
        behavior,
        points or (TABLE_POINTS if csv_file is None and not as_json else POINTS),
        from_step=from_step,
        to_step=to_step,
        common_steps=common_steps,
        with_predecessors=with_predecessors,
    )
    if missing := set(wanted) - {series.key for series in found}:
        metrics = [metric for run in names for metric in client.metrics.list(run)]
        for key in sorted(missing - {metric.key for metric in metrics}):
            echo(f"{key}: {no_metric(key, metrics)}", err=True)
    if as_json:
        print_json(found)
    elif csv_file is None:
        _print_table(_rows(found, names))
    else:
        _write_csv(_rows(found, names), csv_file)


def _rows(found: Sequence[Series], names: Mapping[str, str]) -> Iterator[Row]:
    """Iterate over the entries that have points. `names`: what the user called each run, by its id."""
    for each in found:
        columns = (each.steps, each.times, each.values, each.minima, each.maxima, each.counts)
        for step, time, mean, minimum, maximum, count in zip(*columns, strict=True):
            if count:
                run = names[each.run_id]
                yield Row(run, each.behavior, each.key, step, time, mean, minimum, maximum, count)


def _print_table(rows: Iterator[Row]) -> None:
    shown = [
        [
            *(row.run, row.behavior or "-", row.key, number(row.step)),
            row.time and f"{row.time.astimezone():%Y-%m-%d %H:%M:%S}",
            *(number(value) for value in (row.mean, row.minimum, row.maximum, row.count)),
        ]
        for row in rows
    ]
    print_table(COLUMNS, shown)


def _write_csv(rows: Iterator[Row], file: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(value.isoformat() if isinstance(value, datetime) else value for value in astuple(row))
    if file == "-":
        echo(text.getvalue(), nl=False, kept=LINES)
        return
    try:
        Path(file).write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror or error}", Exit.REFUSED) from error
