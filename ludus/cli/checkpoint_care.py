"""`ludus checkpoint pin | unpin | score | verify | prune`: retention and integrity of checkpoints."""

from typing import Any

import click

from ludus.cli.client import Failure, answering, connected
from ludus.cli.exits import Exit
from ludus.cli.options import DURATION, json_option
from ludus.cli.render import id_of, number, print_answer, print_table, size, table
from ludus.client import Client, ProblemAnswer
from ludus.schemas import Checkpoint, CheckpointVerified, Pruned


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", default="latest")
@answering(id_of)
def pin(client: Client, *, run: str, checkpoint_id: str) -> Checkpoint:
    """Keep a checkpoint of RUN (default: the latest) regardless of the retention rules. Prints its id."""
    return client.checkpoints.pin(run, checkpoint_id)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@answering(id_of)
def unpin(client: Client, *, run: str, checkpoint_id: str) -> Checkpoint:
    """Remove the pin of CHECKPOINT of RUN: the retention rules apply again. Prints its id."""
    return client.checkpoints.unpin(run, checkpoint_id)


@click.command()
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


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", required=False)
@json_option
@connected
def verify(client: Client, *, run: str, checkpoint_id: str | None, as_json: bool) -> None:
    """Compare all files of all checkpoints of RUN, or of CHECKPOINT, with their checksums.

    Runs never resume from a damaged checkpoint. Exits with an error if one is damaged.
    """
    wanted = [each.id for each in client.checkpoints.list(run)] if checkpoint_id is None else [checkpoint_id]
    verified = []
    for each in wanted:
        try:
            verified.append(client.checkpoints.verify(run, each))
        except ProblemAnswer as error:
            # Retention may have deleted a checkpoint after it was listed.
            if checkpoint_id is not None or error.code not in {"checkpoint_deleted", "checkpoint_not_found"}:
                raise

    def show(verified: list[CheckpointVerified]) -> None:
        rows = [
            (each.checkpoint.id, number(each.checkpoint.step), size(each.bytes), "; ".join(each.problems) or "sound")
            for each in verified
        ]
        print_table(["id", "step", "read", "files"], rows)

    print_answer(verified, show, as_json=as_json)
    damaged = [each.checkpoint.id for each in verified if not each.sound]
    if damaged:
        raise Failure(f"damaged: {', '.join(damaged)}; the run will be resumed from another one", Exit.REFUSED)


def _show_pruned(pruned: Pruned) -> str:
    if pruned.checkpoints:
        table("id, run_id, step, size, created_at, rule")(pruned.checkpoints)
    done = "Would delete" if pruned.dry_run else "Deleted"
    return f"{done} {len(pruned.checkpoints)} checkpoints, {size(pruned.bytes)}"


@click.command()
@click.option(
    "--older-than",
    "older_than_seconds",
    type=DURATION,
    help="Age, as in 30d. [the server's LUDUS_STORAGE__RETENTION_SECONDS]",
)
@click.option(
    "--max-bytes", type=click.IntRange(0), help="Total size in bytes. [the server's LUDUS_STORAGE__RETENTION_BYTES]"
)
@click.option("--dry-run", is_flag=True, help="Only list the checkpoints.")
@answering(_show_pruned)
def prune(client: Client, **limits: Any) -> Pruned:
    """Delete checkpoints of all runs beyond a limit of age or total size, the oldest first.

    The newest good one of every run stays, and so do the best, pinned and used ones.
    """
    return client.checkpoints.prune(**limits)
