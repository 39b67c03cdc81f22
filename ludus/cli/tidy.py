"""`ludus run rename | tag | delete`: rename, tag and delete runs."""

from collections.abc import Sequence

import click

from ludus.cli.client import answering, connected
from ludus.cli.render import echo
from ludus.client import Client
from ludus.schemas import Run


@click.command()
@click.argument("run")
@click.argument("name")
@answering(lambda renamed: f"{renamed.id} {renamed.name}")
def rename(client: Client, *, run: str, name: str) -> Run:
    """Give RUN another NAME, also after its end."""
    return client.runs.rename(run, name)


@click.command()
@click.argument("run")
@click.argument("tags", nargs=-1)
@click.option("--remove", "removed", multiple=True, metavar="TAG", help="A tag to remove. Can be given several times.")
@answering(lambda tagged: ", ".join(tagged.tags))
def tag(client: Client, *, run: str, tags: tuple[str, ...], removed: tuple[str, ...]) -> Run:
    """Add TAGS to RUN, and remove others, also after its end. Prints all tags of the run."""
    if not tags and not removed:
        raise click.UsageError("name at least one tag to add, or --remove TAG")
    return client.runs.tag(run, tags, removed)


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(client: Client, *, runs: tuple[str, ...], yes: bool) -> None:
    """Delete RUNS that have ended, with their metrics, events, logs and checkpoints.

    A run is kept, and the error names the reason, while an alias stands for one of its checkpoints, another run began
    with one or judged one, a checkpoint is pinned, or it plays on a shared ladder.
    """
    found = [client.runs.get(run) for run in runs]  # all names first: after a deletion one would mean another run
    if not yes:
        for each in found:
            echo(f"{each.id} {each.name} {each.state}", err=True)
        count = f"{len(found)} run{'s' if len(found) > 1 else ''}"
        click.confirm(f"Delete {count}? This cannot be undone", abort=True, err=True)
    for each in found:
        client.runs.delete(each.id)
        echo(f"{each.id} deleted")


COMMANDS: Sequence[click.Command] = (rename, tag, delete)
