"""`ludus recording`: recordings of simulators' sessions on the server."""

from collections.abc import Iterator
from pathlib import Path

import click

from ludus.cli.client import answering, connected, writing
from ludus.cli.options import FILE
from ludus.cli.render import echo, table
from ludus.client import Client
from ludus.play.recordings.file import SUFFIX
from ludus.schemas import Recording


@click.group()
def recording() -> None:
    """Recordings of simulators' sessions: what games sent and got. `ludus replay` plays them again."""


@recording.command("list")
@click.argument("run")
@answering(table("id, simulator, carrier, cause, code, messages=frames, seconds, size, created_at"))
def list_(client: Client, *, run: str) -> Iterator[Recording]:
    """List the recordings of RUN, newest first."""
    return client.recordings.list(run)


@recording.command()
@click.argument("run")
@click.argument("recording_id", metavar="RECORDING")
@click.option("--output", "-o", type=FILE, help=f"File to write. [the recording's id, with {SUFFIX}]")
@connected
def download(client: Client, *, run: str, recording_id: str, output: Path | None) -> None:
    """Download a RECORDING of RUN; its checksum is verified. It takes a token with the scope `run`."""
    target = output or Path(recording_id + SUFFIX)
    with writing(target):
        echo(str(client.recordings.download(run, recording_id, target)))


@recording.command()
@click.argument("run")
@click.argument("recordings", nargs=-1, required=True, metavar="RECORDINGS...")
@connected
def delete(client: Client, *, run: str, recordings: tuple[str, ...]) -> None:
    """Delete RECORDINGS of RUN."""
    for recording_id in recordings:
        client.recordings.delete(run, recording_id)
