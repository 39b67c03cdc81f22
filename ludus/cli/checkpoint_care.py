"""`ludus checkpoint pin | unpin | score | verify | prune`: retention and integrity of checkpoints."""

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import Duration, json_option
from ludus.cli.render import ago, echo, number, print_json, print_result, print_table, size
from ludus.client import Client, ProblemAnswer
from ludus.schemas import CheckpointVerified


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", default="latest")
@json_option
@connected
def pin(client: Client, *, run: str, checkpoint_id: str, as_json: bool) -> None:
    """Keep a checkpoint of RUN (default: the latest) regardless of the retention rules. Prints its id."""
    found = client.checkpoints.pin(run, checkpoint_id)
    print_result(found, found.id, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@json_option
@connected
def unpin(client: Client, *, run: str, checkpoint_id: str, as_json: bool) -> None:
    """Remove the pin of CHECKPOINT of RUN: the retention rules apply again. Prints its id."""
    found = client.checkpoints.unpin(run, checkpoint_id)
    print_result(found, found.id, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("metric")
@click.argument("value", type=float)
@click.option("--behavior", default="", help="Behavior of the score. [the whole run]")
@json_option
@connected
def score(
    client: Client, *, run: str, checkpoint_id: str, metric: str, value: float, behavior: str, as_json: bool
) -> None:
    """Store VALUE as the score METRIC (a name of your choice) of CHECKPOINT of RUN.

    If `checkpoint_settings.keep_best.metric` is METRIC, the run keeps its best checkpoints by this score.
    """
    found = client.checkpoints.score(run, checkpoint_id, metric, value, behavior=behavior)
    print_result(found, found.id, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", required=False)
@json_option
@connected
def verify(client: Client, *, run: str, checkpoint_id: str | None, as_json: bool) -> None:
    """Compare all files of all checkpoints of RUN, or of CHECKPOINT, with their checksums.

    Runs never resume from a damaged checkpoint. Exits with an error if one is damaged.
    """
    if checkpoint_id is None:
        verified = (_verified_if_there(client, run, each.id) for each in client.checkpoints.list(run))
        looked = [each for each in verified if each is not None]
    else:
        looked = [client.checkpoints.verify(run, checkpoint_id)]
    if as_json:
        print_json(looked)
    else:
        rows = [
            (each.checkpoint.id, number(each.checkpoint.step), size(each.bytes), "; ".join(each.problems) or "sound")
            for each in looked
        ]
        print_table(["id", "step", "read", "files"], rows)
    damaged = [each.checkpoint.id for each in looked if not each.sound]
    if damaged:
        raise Failure(f"damaged: {', '.join(damaged)}; the run will be resumed from another one", Exit.REFUSED)


@click.command()
@click.option("--older-than", type=Duration(), help="Age, as in 30d. [the server's LUDUS_STORAGE__RETENTION_SECONDS]")
@click.option(
    "--max-bytes", type=click.IntRange(0), help="Total size in bytes. [the server's LUDUS_STORAGE__RETENTION_BYTES]"
)
@click.option("--dry-run", is_flag=True, help="Only list the checkpoints.")
@json_option
@connected
def prune(client: Client, *, older_than: float | None, max_bytes: int | None, dry_run: bool, as_json: bool) -> None:
    """Delete checkpoints of all runs beyond a limit of age or total size, the oldest first.

    The newest good one of every run stays, and so do the best, pinned and used ones.
    """
    gone = client.checkpoints.prune(older_than_seconds=older_than, max_bytes=max_bytes, dry_run=dry_run)
    if as_json:
        print_json(gone)
        return
    rows = [
        (each.id, each.run_id, number(each.step), size(each.size), ago(each.created_at), each.rule)
        for each in gone.checkpoints
    ]
    if rows:
        print_table(["id", "run", "step", "size", "created", "rule"], rows)
    echo(f"{'Would delete' if dry_run else 'Deleted'} {len(rows)} checkpoints, {size(gone.bytes)}")


def _verified_if_there(client: Client, run: str, checkpoint_id: str) -> CheckpointVerified | None:
    """Verify a checkpoint; None if retention has deleted it since it was listed."""
    try:
        return client.checkpoints.verify(run, checkpoint_id)
    except ProblemAnswer as error:
        if error.code in {"checkpoint_deleted", "checkpoint_not_found"}:
            return None
        raise
