"""`ludus demonstration`: recordings of good behavior on the server: upload, look into, merge, thin, download."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from ludus.cli.client import Failure, answering, connected, writing
from ludus.cli.exits import Exit
from ludus.cli.options import EXISTING, FILE, SEED, filter_option
from ludus.cli.render import echo, fields, id_of, number, print_facts, print_ids, table
from ludus.client import Client
from ludus.names import to_name
from ludus.schemas import Demonstration, DemonstrationSummary, Spread

BARS = " ▁▂▃▄▅▆▇█"
SUFFIXES = {"mlagents": ".demo", "ludus": ".npz"}

name_option = click.option("--name", help="Name for display.")


@click.group()
def demonstration() -> None:
    """Store demonstrations, for behavioral cloning and GAIL. Configurations name them by id."""


@demonstration.command()
@click.argument("paths", nargs=-1, required=True, type=EXISTING)
@name_option
@answering(print_ids)
def upload(client: Client, *, paths: tuple[Path, ...], name: str | None) -> Iterator[Demonstration]:
    """Upload PATHS: files (ML-Agents' .demo, or .npz of `ludus simulate --record`), or folders of them.

    Prints an id for each file, in the order of the names within a folder. A configuration that lists all ids learns
    from them as from one, as ML-Agents does with a folder in `demo_path`.
    """
    files: list[Path] = []
    for path in paths:
        of_folder = path.iterdir() if path.is_dir() else ()
        recordings = sorted(file for file in of_folder if file.suffix in SUFFIXES.values()) if path.is_dir() else [path]
        if not recordings:
            raise Failure(f"the folder {path} has no {' or '.join(SUFFIXES.values())} file", Exit.REFUSED)
        files += recordings
    for file in files:
        yield client.demonstrations.upload(file, name=name or to_name(file.stem))


@demonstration.command()
@click.argument("source", type=EXISTING)
@click.option("--output", "-o", type=FILE, required=True, help="File to write (.npz).")
@click.option("--behavior", help="Name of the behavior; recordings have their own. [SOURCE's name]")
def convert(*, source: Path, output: Path, behavior: str | None) -> None:
    """Make a demonstration of SOURCE: a recording (.ludusrec), a Parquet file, or the folder of a Minari dataset.

    Rewards and endings are kept, terminations apart from truncations: `trainer_type: offline` learns from them. A
    recording of several behaviors becomes several files. docs/offline.md has the columns of a Parquet file.
    """
    from ludus.cli.conversion import convert_source  # noqa: PLC0415  numpy: other commands do not wait for it

    convert_source(source, output, behavior)


@demonstration.command("list")
@filter_option("'behavior = \"Walker*\" AND episodes >= 10'")
@answering(table("id, name, behavior, steps=transitions, episodes, return=mean_return, size, created_at"))
def list_(client: Client, *, filter_: str) -> Iterator[DemonstrationSummary]:
    """List demonstrations, newest first."""
    return client.demonstrations.list(filter_)


def _origin(origin: Mapping[str, object]) -> str:
    match origin:
        case {"merged": list(sources)}:
            return "merged: " + ", ".join(sources)
        case {"subsampled": source}:
            parts = [
                f"{origin['count']} transitions" if "count" in origin else "",
                f"every {origin['every']}. transition" if "every" in origin else "",
                f"{origin['episodes']} episodes" if "episodes" in origin else "",
            ]
            seed = f", seed {origin['seed']}" if "seed" in origin else ""
            return " of ".join([*filter(None, parts), str(source)]) + seed
        case _:
            return ""


def _spread(values: Spread | None) -> str:
    if values is None:
        return ""
    return f"{number(values.mean)} ± {number(values.std)} ({number(values.minimum)} to {number(values.maximum)})"


def bars(counts: Sequence[int]) -> str:
    """Draw a histogram in one line; every bin that is not empty has a bar."""
    highest = max(counts, default=0) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in counts)


def _show(recording: Demonstration) -> None:
    observations = [
        f"{' x '.join(str(length) for length in observation.shape)} {observation.dtype} {observation.name}".rstrip()
        for observation in recording.spec.observations
    ]
    branches = [
        ", ".join(f"{choice}: {number(count)}" for choice, count in enumerate(counts))
        for counts in recording.summary.discrete
    ]
    print_facts(
        [
            *fields(recording, "id, name, behavior, format"),
            ("made from", _origin(recording.origin)),
            *fields(recording, "size, steps=transitions, episodes"),
            *fields(recording.summary, "fragments"),
            ("returns", _spread(recording.summary.returns)),
            ("lengths", _spread(recording.summary.lengths)),
            *((f"observation {index}", text) for index, text in enumerate(observations)),
            *(
                (f"continuous {index}", f"-1 |{bars(counts)}| 1")
                for index, counts in enumerate(recording.summary.continuous)
            ),
            *((f"branch {index}", text) for index, text in enumerate(branches)),
        ]
    )


@demonstration.command()
@click.argument("demonstration_id", metavar="DEMONSTRATION")
@answering(_show)
def show(client: Client, *, demonstration_id: str) -> Demonstration:
    """Show DEMONSTRATION: observations, actions, episodes and returns."""
    return client.demonstrations.get(demonstration_id)


@demonstration.command()
@click.argument("demonstrations", nargs=-1, required=True, metavar="DEMONSTRATIONS...")
@name_option
@answering(id_of)
def merge(client: Client, *, demonstrations: tuple[str, ...], name: str | None) -> Demonstration:
    """Make one demonstration of several; the originals stay. Prints its id."""
    return client.demonstrations.merge(demonstrations, name=name)


@demonstration.command()
@click.argument("demonstration_id", metavar="DEMONSTRATION")
@click.argument("count", type=click.IntRange(min=1), required=False)
@click.option("--episodes", type=click.IntRange(min=1), help="Number of complete episodes to keep. [all]")
@click.option("--every", type=click.IntRange(min=1), help="Keep every n-th transition of each episode.")
@click.option(
    "--seed",
    type=SEED,
    help="Seed: draw the episodes and the first transition of --every. [the first ones; 0 for COUNT]",
)
@name_option
@answering(id_of)
def subsample(
    client: Client,
    *,
    demonstration_id: str,
    count: int | None,
    episodes: int | None,
    every: int | None,
    seed: int | None,
    name: str | None,
) -> Demonstration:
    """Make a smaller demonstration of DEMONSTRATION, and print its id.

    `--episodes 10` keeps whole episodes, `--every 20` every 20th transition of each, COUNT keeps COUNT transitions,
    drawn without replacement. `--episodes 10 --every 20` thins demonstrations as in the literature on GAIL.
    """
    if count is not None and every is not None:
        raise click.UsageError("COUNT and --every both say which transitions: leave one of them out")
    if count is episodes is every is None:
        raise click.UsageError("say what to keep: --episodes, and --every or COUNT for transitions")
    return client.demonstrations.subsample(
        demonstration_id, count, episodes=episodes, every=every, seed=seed, name=name
    )


@demonstration.command()
@click.argument("demonstration_id", metavar="DEMONSTRATION")
@click.option("--output", "-o", type=FILE, help="File to write. [the demonstration's id, with .demo or .npz]")
@connected
def download(client: Client, *, demonstration_id: str, output: Path | None) -> None:
    """Download the file of DEMONSTRATION; its checksum is verified."""
    stored = client.demonstrations.get(demonstration_id)
    target = output or Path(stored.id + SUFFIXES.get(stored.format, ""))
    with writing(target):
        echo(str(client.demonstrations.download(stored.id, target)))


@demonstration.command()
@click.argument("demonstrations", nargs=-1, required=True, metavar="DEMONSTRATIONS...")
@connected
def delete(client: Client, *, demonstrations: tuple[str, ...]) -> None:
    """Delete demonstrations. The server refuses while a run that has not ended uses one of them."""
    for demonstration_id in demonstrations:
        client.demonstrations.delete(demonstration_id)
