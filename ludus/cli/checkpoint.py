"""`ludus checkpoint`: list a run's checkpoints, download models; upload those of ML-Agents to begin with."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from ludus.cli.checkpoint_care import pin, prune, score, unpin, verify
from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option, name_of
from ludus.cli.render import ago, echo, number, print_facts, print_json, print_result, print_table, size
from ludus.client import Client
from ludus.schemas import Checkpoint, CheckpointFile, UploadedCheckpoint

MODELS = "*.onnx"


@click.group()
def checkpoint() -> None:
    """List a run's checkpoints and download their files; upload checkpoints of ML-Agents.

    A behavior starts from the checkpoint that its configuration names: `initialize_from: ckpt_...`.
    """


for _command in (pin, unpin, score, verify, prune):
    checkpoint.add_command(_command)


@checkpoint.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Name for display. [the file's]")
@click.option("--behavior", help="Behavior of the checkpoint, as a note.")
@json_option
@connected
def upload(client: Client, *, files: tuple[Path, ...], name: str | None, behavior: str | None, as_json: bool) -> None:
    """Upload FILES: ML-Agents' checkpoint.pt, or any Behavior-STEP.pt beside it. Prints an id for each."""
    stored = []
    for file in files:
        stored.append(client.uploaded_checkpoints.upload(file, name=name or name_of(file), behavior=behavior))
        if not as_json:
            echo(stored[-1].id)
    if as_json:
        print_json(stored)


@checkpoint.command("list")
@click.argument("run", required=False)
@json_option
@connected
def list_(client: Client, *, run: str | None, as_json: bool) -> None:
    """List the checkpoints of RUN, newest first; without RUN, the uploaded ones."""
    if run is None:
        _list_uploaded(list(client.uploaded_checkpoints.list()), as_json=as_json)
        return
    found = client.checkpoints.list(run)
    if as_json:
        print_json(found)
        return
    rows = [
        (each.id, number(each.step), each.reason, _rewards(each), size(each.size), ago(each.created_at), _why(each))
        for each in found
    ]
    print_table(["id", "step", "reason", "reward", "size", "created", "kept"], rows)


@checkpoint.command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option("--run", help="Run of the checkpoint; without it, an uploaded checkpoint.")
@json_option
@connected
def show(client: Client, *, checkpoint_id: str, run: str | None, as_json: bool) -> None:
    """Show CHECKPOINT: its contents and files."""
    found = (
        client.uploaded_checkpoints.get(checkpoint_id) if run is None else client.checkpoints.get(run, checkpoint_id)
    )
    if as_json:
        print_json(found)
        return
    print_facts(_uploaded_facts(found) if isinstance(found, UploadedCheckpoint) else _facts(found))


@checkpoint.command()
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINTS...")
@connected
def delete(client: Client, *, checkpoints: tuple[str, ...]) -> None:
    """Delete uploaded CHECKPOINTS. The server refuses while a run that has not ended starts from one of them."""
    for each in checkpoints:
        client.uploaded_checkpoints.delete(each)


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
    found = client.checkpoints.get(run, checkpoint_id)
    files = [_fetch(client, found, file, output) for file in _chosen(found, patterns or (MODELS,))]
    if as_json:
        print_json({"checkpoint": found, "files": [str(file) for file in files]})
        return
    for file in files:
        echo(str(file))


@checkpoint.group()
def alias() -> None:
    """Movable names of checkpoints, such as `champion`. Retention keeps every checkpoint with an alias."""


@alias.command("set")
@click.argument("name")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option(
    "--expect",
    metavar="CHECKPOINT",
    help="Change only if the alias has this checkpoint now; `none`: only if the alias is new.",
)
@json_option
@connected
def set_alias(client: Client, *, name: str, checkpoint_id: str, expect: str | None, as_json: bool) -> None:
    """Set the alias NAME to CHECKPOINT: an id (ckpt_...) or RUN/latest."""
    if "/" in checkpoint_id:
        run, _, which = checkpoint_id.rpartition("/")
        checkpoint_id = client.checkpoints.get(run, which).id
    if expect is None:
        made = client.aliases.set(name, checkpoint_id)
    else:
        made = client.aliases.set(name, checkpoint_id, expected=None if expect == "none" else expect)
    print_result(made, f"{made.name} is {made.checkpoint_id}", as_json=as_json)


@alias.command("list")
@json_option
@connected
def list_aliases(client: Client, *, as_json: bool) -> None:
    """List aliases and their checkpoints."""
    found = list(client.aliases.list())
    if as_json:
        print_json(found)
        return
    print_table(
        ["name", "checkpoint", "moved"], [(each.name, each.checkpoint_id, ago(each.moved_at)) for each in found]
    )


@alias.command("show")
@click.argument("name")
@json_option
@connected
def show_alias(client: Client, *, name: str, as_json: bool) -> None:
    """Print the checkpoint of the alias NAME."""
    found = client.aliases.get(name)
    print_result(found, found.checkpoint_id, as_json=as_json)


@alias.command("delete")
@click.argument("names", nargs=-1, required=True)
@connected
def delete_alias(client: Client, *, names: tuple[str, ...]) -> None:
    """Remove NAMES; the checkpoints stay."""
    for each in names:
        client.aliases.delete(each)


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
        return client.checkpoints.download(found.run_id, found.id, file.name, target)
    except OSError as error:
        raise Failure(f"cannot write {target}: {error.strerror or error}", Exit.REFUSED) from error


def _list_uploaded(found: Sequence[UploadedCheckpoint], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    rows = [(each.id, each.name, each.behavior or "-", size(each.size), ago(each.created_at)) for each in found]
    print_table(["id", "name", "behavior", "size", "created"], rows)


def _uploaded_facts(found: UploadedCheckpoint) -> list[tuple[str, str]]:
    return [
        ("id", found.id),
        ("name", found.name),
        ("behavior", found.behavior or ""),
        ("format", found.format),
        ("modules", ", ".join(found.modules)),
        ("size", size(found.size)),
        ("sha256", found.sha256),
        ("created", ago(found.created_at)),
    ]


def _facts(found: Checkpoint) -> list[tuple[str, str]]:
    return [
        ("id", found.id),
        ("run", found.run_id),
        ("step", number(found.step)),
        *((f"step of {behavior}", number(step)) for behavior, step in found.steps.items()),
        ("reason", found.reason),
        ("reward", _rewards(found)),
        ("size", size(found.size)),
        *((f"file {file.name}", size(file.size)) for file in found.files),
        ("score", "-" if found.score is None else number(found.score)),
        ("created", ago(found.created_at)),
        ("kept", _why(found)),
    ]


def _why(found: Checkpoint) -> str:
    """Say what else is known of it: pinned, damaged."""
    pinned = [f"pinned {ago(found.pinned_at)}"] if found.pinned_at else []
    damaged = [f"damaged: {found.damage}"] if found.damaged_at else []
    return "; ".join(pinned + damaged) or "-"


def _rewards(found: Checkpoint) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in found.metrics.items()) or "-"
