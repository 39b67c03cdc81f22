"""`ludus run metrics`: the newest value of each metric, or all points as a Parquet file."""

from pathlib import Path

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option
from ludus.cli.render import echo, number, print_answer, print_json, print_table
from ludus.client import Client


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
        found = client.metrics.list(run)
        if as_json:
            print_json(found)
        else:
            rows = [[each.behavior or "-", each.key, number(each.step), number(each.value)] for each in found]
            print_table(["behavior", "key", "step", "value"], rows)
        return
    try:
        client.metrics.download(run, file)
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror or error}", Exit.REFUSED) from error
    print_answer({"file": str(file)}, lambda _: echo(str(file)), as_json=as_json)
