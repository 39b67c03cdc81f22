"""`ludus checkpoint pin | unpin | score | verify | prune`: what is kept, what is sound, what may go."""

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
    """Keep a checkpoint of RUN, the latest by default, whatever the rules say. Prints its id."""
    found = client.pin_checkpoint(run, checkpoint_id)
    print_result(found, found.id, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@json_option
@connected
def unpin(client: Client, *, run: str, checkpoint_id: str, as_json: bool) -> None:
    """Let the rules decide again whether CHECKPOINT of RUN is kept. Prints its id."""
    found = client.unpin_checkpoint(run, checkpoint_id)
    print_result(found, found.id, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("metric")
@click.argument("value", type=float)
@click.option("--behavior", default="", help="The behavior that it is of. [the run as a whole]")
@json_option
@connected
def score(
    client: Client, *, run: str, checkpoint_id: str, metric: str, value: float, behavior: str, as_json: bool
) -> None:
    """Enter VALUE for METRIC, a name of your choice, as what an evaluation says of CHECKPOINT of RUN.

    A run whose `checkpoint_settings.keep_best.metric` has that name keeps its best checkpoints by it.
    """
    found = client.score_checkpoint(run, checkpoint_id, metric, value, behavior=behavior)
    print_result(found, found.id, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("checkpoint_id", metavar="[CHECKPOINT]", required=False)
@json_option
@connected
def verify(client: Client, *, run: str, checkpoint_id: str | None, as_json: bool) -> None:
    """Compare all files of all checkpoints of RUN, or of CHECKPOINT, with the checksums that they were stored with.

    A run is not resumed from a damaged checkpoint. Exits with an error if there is one.
    """
    if checkpoint_id is None:
        verified = (_verified_if_there(client, run, each.id) for each in client.checkpoints(run))
        looked = [each for each in verified if each is not None]
    else:
        looked = [client.verify_checkpoint(run, checkpoint_id)]
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
    "--max-bytes", type=click.IntRange(0), help="Bytes of all together. [the server's LUDUS_STORAGE__RETENTION_BYTES]"
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@json_option
@connected
def prune(client: Client, *, older_than: float | None, max_bytes: int | None, dry_run: bool, as_json: bool) -> None:
    """Delete checkpoints of all runs that are too old or too much, the oldest first.

    Of every run the newest good one stays, and the best, the pinned and the used ones.
    """
    gone = client.prune_checkpoints(older_than_seconds=older_than, max_bytes=max_bytes, dry_run=dry_run)
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
        return client.verify_checkpoint(run, checkpoint_id)
    except ProblemAnswer as error:
        if error.code in {"checkpoint_deleted", "checkpoint_not_found"}:
            return None
        raise
