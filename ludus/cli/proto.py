"""`ludus proto`: the contract of simulators, to write a client from."""

from importlib.resources import files
from pathlib import Path

import click

from ludus.cli.client import writing
from ludus.cli.options import FOLDER
from ludus.cli.render import echo


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
def proto(folder: Path) -> None:
    """Write the .proto files of this release, and the contract in prose (README.md), to DIR.

    `protoc -I DIR ludus/v1/simulation.proto` then makes a client's stubs; `ludus fake-server` is there to try it
    against. Files of the same name are replaced.
    """
    source = files("ludus").joinpath("proto")
    if not source.is_dir():  # an editable installation: the wheel holds a copy
        source = files("ludus").joinpath("../proto")
    for name in ("README.md", "ludus/v1/simulation.proto", "mlagents/unity.proto"):
        with writing(f"to {folder}"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.joinpath(name).read_bytes())
            echo(str(target))
