"""`ludus checkpoint`: list a run's checkpoints, download models."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from ludus.api import Client
from ludus.cli.client import ClientGroup, Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option
from ludus.cli.render import ago, number, print_json, print_table, size
from ludus.records import Checkpoint, CheckpointFile

MODELS = "*.onnx"


@click.group(cls=ClientGroup)
def checkpoint() -> None:
    """List a run's checkpoints and download their files."""


@checkpoint.command("list")
@click.argument("run")
@json_option
@connected
def list_(client: Client, *, run: str, as_json: bool) -> None:
    """List the checkpoints of RUN, newest first."""
    found = client.checkpoints(run)
    if as_json:
        print_json(found)
        return
    rows = [
        (each.id, number(each.step), each.reason, _rewards(each), size(each.size), ago(each.created_at))
        for each in found
    ]
    print_table(["id", "step", "reason", "reward", "size", "created"], rows)


@checkpoint.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", default="latest")
@click.option("--file", "patterns", multiple=True, help=f"Files to download, as in 'CartPole.onnx' or '*'. [{MODELS}]")
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to put them in. [the present one]",
)
@json_option
@connected
def download(
    client: Client, *, run: str, checkpoint_id: str, patterns: tuple[str, ...], output: Path, as_json: bool
) -> None:
    """Download the models (or other files) of a checkpoint of RUN, the latest by default; checksums are verified."""
    found = client.get_checkpoint(run, checkpoint_id)
    files = [_fetch(client, found, file, output) for file in _chosen(found, patterns or (MODELS,))]
    if as_json:
        print_json({"checkpoint": found, "files": [str(file) for file in files]})
        return
    for file in files:
        click.echo(str(file))


def _chosen(found: Checkpoint, patterns: Sequence[str]) -> list[CheckpointFile]:
    chosen = [file for file in found.files if any(fnmatchcase(file.name, pattern) for pattern in patterns)]
    if not chosen:
        names = ", ".join(file.name for file in found.files)
        raise Failure(f"checkpoint {found.id} has no file {' or '.join(patterns)}; it has {names}", Exit.REFUSED)
    return chosen


def _fetch(client: Client, found: Checkpoint, file: CheckpointFile, folder: Path) -> Path:
    target = folder / file.name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise Failure(
            f"the server names a file {file.name!r}, which lies outside the folder; not downloaded", Exit.REFUSED
        )
    try:
        return client.download(found.run_id, found.id, file.name, target)
    except OSError as error:
        raise Failure(f"cannot write {target}: {error.strerror or error}", Exit.REFUSED) from error


def _rewards(found: Checkpoint) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in found.metrics.items()) or "-"
