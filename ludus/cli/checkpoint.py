"""`ludus checkpoint`: list, download, keep, check and delete checkpoints; upload those of ML-Agents; aliases."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import click

from ludus.cli.client import Failure, answering, connected, writing
from ludus.cli.exits import Exit
from ludus.cli.options import EXISTING_FILE, FOLDER, duration, json_option, limit_option
from ludus.cli.render import LINES, ago, echo, fields, id_of, number, print_answer, print_facts, print_ids, size, table
from ludus.client import Client, ProblemAnswer
from ludus.names import to_name
from ludus.schemas import Alias, AliasMove, Checkpoint, CheckpointFile, CheckpointVerified, Pruned, UploadedCheckpoint

MODELS = "*.onnx"


@click.group()
def checkpoint() -> None:
    """List a run's checkpoints and download their files; upload checkpoints of ML-Agents.

    A behavior starts from the checkpoint that its configuration names: `initialize_from: ckpt_...`.
    """


@checkpoint.command()
@click.argument("files", nargs=-1, required=True, type=EXISTING_FILE)
@click.option("--name", help="Name for display. [the file's]")
@click.option("--behavior", help="Behavior of the checkpoint, as a note.")
@answering(print_ids)
def upload(
    client: Client, *, files: tuple[Path, ...], name: str | None, behavior: str | None
) -> Iterator[UploadedCheckpoint]:
    """Upload FILES: ML-Agents' checkpoint.pt, or any Behavior-STEP.pt beside it. Prints an id for each."""
    for file in files:
        yield client.uploaded_checkpoints.upload(file, name=name or to_name(file.stem), behavior=behavior)


def _rewards(stored: Checkpoint) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in stored.metrics.items()) or "-"


def _state(stored: Checkpoint) -> str:
    pinned = [f"pinned {ago(stored.pinned_at)}"] if stored.pinned_at else []
    damaged = [f"damaged: {stored.damage}"] if stored.damaged_at else []
    return "; ".join(pinned + damaged) or "-"


@checkpoint.command("list")
@click.argument("run", required=False)
@json_option
@connected
def list_(client: Client, *, run: str | None, as_json: bool) -> None:
    """List the checkpoints of RUN, newest first; without RUN, the uploaded ones."""
    if run is None:
        show = table("id, name, behavior, size, created_at")
        print_answer(client.uploaded_checkpoints.list(), show, as_json=as_json)
    else:
        show = table("id, step, reason, reward, size, created_at, kept", reward=_rewards, kept=_state)
        print_answer(client.checkpoints.list(run), show, as_json=as_json)


def _file_facts(file: CheckpointFile) -> Iterator[tuple[str, object]]:
    """Iterate over a file's size and, of a model, what a game must know to load it."""
    yield f"file {file.name}", size(file.size)
    model = file.model
    if model is None:
        return
    yield "  behavior", model.behavior
    yield "  opset", model.opset
    yield "  continuous actions", model.continuous_actions or None
    branches = ", ".join(str(choices) for choices in model.discrete_branches)
    yield "  discrete branches", branches and f"{branches} choices{', with masks' if model.action_masks else ''}"
    yield "  memory size", model.memory_size or None
    for kind, tensors in (("input", model.inputs), ("output", model.outputs)):
        for tensor in tensors:
            shape = ", ".join(str(side) for side in tensor.shape)
            yield f"  {kind} {tensor.name}", f"{tensor.dtype} ({shape})"


def _show(stored: Checkpoint | UploadedCheckpoint) -> None:
    if isinstance(stored, UploadedCheckpoint):
        print_facts(fields(stored, "id, name, behavior, format, modules, size, sha256, created_at"))
        return
    print_facts(
        [
            *fields(stored, "id, run_id, step"),
            *((f"step of {behavior}", number(step)) for behavior, step in stored.steps.items()),
            *fields(stored, "reason, reward, size", reward=_rewards),
            *(fact for file in stored.files for fact in _file_facts(file)),
            ("score", number(stored.score)),
            *fields(stored, "created_at, kept", kept=_state),
        ]
    )


@checkpoint.command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option("--run", help="Run of the checkpoint; without it, an uploaded checkpoint.")
@answering(_show)
def show(client: Client, *, checkpoint_id: str, run: str | None) -> Checkpoint | UploadedCheckpoint:
    """Show CHECKPOINT: its contents and files."""
    if run is None:
        return client.uploaded_checkpoints.get(checkpoint_id)
    return client.checkpoints.get(run, checkpoint_id)


@checkpoint.command()
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINTS...")
@connected
def delete(client: Client, *, checkpoints: tuple[str, ...]) -> None:
    """Delete uploaded CHECKPOINTS. The server refuses while a run that has not ended starts from one of them."""
    for checkpoint_id in checkpoints:
        client.uploaded_checkpoints.delete(checkpoint_id)


@checkpoint.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", default="latest")
@click.option("--file", "patterns", multiple=True, help=f"Files to download, as in 'CartPole.onnx' or '*'. [{MODELS}]")
@click.option("--output", "-o", type=FOLDER, default=Path(), help="Folder to put them in. [the present one]")
@click.option(
    "--for", "engine", type=click.Choice(["godot"]), help="Rewrite models in the form that this engine loads."
)
@json_option
@connected
def download(
    client: Client,
    *,
    run: str,
    checkpoint_id: str,
    patterns: tuple[str, ...],
    output: Path,
    engine: str | None,
    as_json: bool,
) -> None:
    """Download the models (or other files) of a checkpoint of RUN, the latest by default; checksums are verified.

    Models have the form of ML-Agents, which Unity loads. `--for godot` rewrites them for the plug-in of Godot RL
    Agents, and needs the package `onnx`.
    """
    stored = client.checkpoints.get(run, checkpoint_id)
    patterns = patterns or (MODELS,)
    stored_files = [file.name for file in stored.files]
    names = [
        name for name in stored_files if name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not names:
        raise Failure(
            f"checkpoint {stored.id} has no file {' or '.join(patterns)}; it has {', '.join(stored_files)}",
            Exit.REFUSED,
        )
    files = [str(fetch(client, stored, name, output)) for name in names]
    if engine is not None:
        from ludus.games.godot.model import NotForGodot, write_for_godot  # noqa: PLC0415  numpy takes its time

        for file in (Path(file) for file in files if file.endswith(".onnx")):
            try:
                write_for_godot(file, file)
            except NotForGodot as error:
                raise Failure(f"{error}; {file} is as it was", Exit.REFUSED) from None
    print_answer({"checkpoint": stored, "files": files}, lambda _: echo("\n".join(files), kept=LINES), as_json=as_json)


def fetch(client: Client, stored: Checkpoint, name: str, folder: Path) -> Path:
    """Download one file of a checkpoint to a folder. Raises Failure where the name leads out of the folder."""
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        outside = f"the server names a file {name!r}, which lies outside the folder; not downloaded"
        raise Failure(outside, Exit.REFUSED)
    with writing(target):
        return client.checkpoints.download(stored.run_id, stored.id, name, target)


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
@answering(lambda made: f"{made.name} is {made.checkpoint_id}")
def set_alias(client: Client, *, name: str, checkpoint_id: str, expect: str | None) -> Alias:
    """Set the alias NAME to CHECKPOINT: an id (ckpt_...) or RUN/latest."""
    if "/" in checkpoint_id:
        run, _, which = checkpoint_id.rpartition("/")
        checkpoint_id = client.checkpoints.get(run, which).id
    if expect is None:
        return client.aliases.set(name, checkpoint_id)
    return client.aliases.set(name, checkpoint_id, expected=None if expect == "none" else expect)


@alias.command("list")
@answering(table("name, checkpoint_id, moved_at, moved_by"))
def list_aliases(client: Client) -> Iterator[Alias]:
    """List aliases and their checkpoints."""
    return client.aliases.list()


@alias.command("history")
@click.argument("name")
@limit_option("moves", 50)
@answering(
    table("version, checkpoint_id, moved_at, moved_by", checkpoint_id=lambda each: each.checkpoint_id or "(deleted)")
)
def alias_history(client: Client, *, name: str, limit: int) -> Iterator[AliasMove]:
    """List the moves of the alias NAME, newest first: to which checkpoint, when, by which token.

    An alias that was deleted has its history, too.
    """
    return client.aliases.history(name, limit=limit)


@alias.command("show")
@click.argument("name")
@answering(lambda found: found.checkpoint_id)
def show_alias(client: Client, *, name: str) -> Alias:
    """Print the checkpoint of the alias NAME."""
    return client.aliases.get(name)


@alias.command("delete")
@click.argument("names", nargs=-1, required=True)
@connected
def delete_alias(client: Client, *, names: tuple[str, ...]) -> None:
    """Remove NAMES; the checkpoints stay."""
    for name in names:
        client.aliases.delete(name)


@checkpoint.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", default="latest")
@answering(id_of)
def pin(client: Client, *, run: str, checkpoint_id: str) -> Checkpoint:
    """Keep a checkpoint of RUN (default: the latest) regardless of the retention rules. Prints its id."""
    return client.checkpoints.pin(run, checkpoint_id)


@checkpoint.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@answering(id_of)
def unpin(client: Client, *, run: str, checkpoint_id: str) -> Checkpoint:
    """Remove the pin of CHECKPOINT of RUN: the retention rules apply again. Prints its id."""
    return client.checkpoints.unpin(run, checkpoint_id)


@checkpoint.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("metric")
@click.argument("value", type=float)
@click.option("--behavior", default="", help="Behavior of the score. [the whole run]")
@answering(id_of)
def score(client: Client, *, run: str, checkpoint_id: str, metric: str, value: float, behavior: str) -> Checkpoint:
    """Store VALUE as the score METRIC (a name of your choice) of CHECKPOINT of RUN.

    If `checkpoint_settings.keep_best.metric` is METRIC, the run keeps its best checkpoints by this score.
    """
    return client.checkpoints.score(run, checkpoint_id, metric, value, behavior=behavior)


@checkpoint.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", required=False)
@json_option
@connected
def verify(client: Client, *, run: str, checkpoint_id: str | None, as_json: bool) -> None:
    """Compare all files of all checkpoints of RUN, or of CHECKPOINT, with their checksums.

    Runs never resume from a damaged checkpoint. Exits with an error if one is damaged.
    """
    ids = [saved.id for saved in client.checkpoints.list(run)] if checkpoint_id is None else [checkpoint_id]
    verified = []
    for saved_id in ids:
        try:
            verified.append(client.checkpoints.verify(run, saved_id))
        except ProblemAnswer as error:
            # Retention may have deleted a checkpoint after it was listed.
            if checkpoint_id is not None or error.code not in {"checkpoint_deleted", "checkpoint_not_found"}:
                raise

    def show(verified: list[CheckpointVerified]) -> None:
        table(
            "id, step, read, files",
            id=lambda result: result.checkpoint.id,
            step=lambda result: number(result.checkpoint.step),
            read=lambda result: size(result.bytes),
            files=lambda result: "; ".join(result.problems) or "sound",
        )(verified)

    print_answer(verified, show, as_json=as_json)
    damaged = [result.checkpoint.id for result in verified if not result.sound]
    if damaged:
        raise Failure(f"damaged: {', '.join(damaged)}; the run will be resumed from another one", Exit.REFUSED)


def _show_pruned(pruned: Pruned) -> str:
    if pruned.checkpoints:
        table("id, run_id, step, size, created_at, rule")(pruned.checkpoints)
    done = "Would delete" if pruned.dry_run else "Deleted"
    return f"{done} {len(pruned.checkpoints)} checkpoints, {size(pruned.bytes)}"


@checkpoint.command()
@click.option(
    "--older-than",
    "older_than_seconds",
    type=duration,
    help="Age, as in 30d. [the server's LUDUS_STORAGE__RETENTION_SECONDS]",
)
@click.option(
    "--max-bytes", type=click.IntRange(0), help="Total size in bytes. [the server's LUDUS_STORAGE__RETENTION_BYTES]"
)
@click.option("--dry-run", is_flag=True, help="Only list the checkpoints.")
@answering(_show_pruned)
def prune(client: Client, *, older_than_seconds: float | None, max_bytes: int | None, dry_run: bool) -> Pruned:
    """Delete checkpoints of all runs beyond a limit of age or total size, the oldest first.

    The newest good one of every run stays, and so do the best, pinned and used ones.
    """
    return client.checkpoints.prune(older_than_seconds=older_than_seconds, max_bytes=max_bytes, dry_run=dry_run)
