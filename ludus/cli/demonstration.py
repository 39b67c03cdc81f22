"""`ludus demonstration`: recordings of good behavior on the server: upload, look into, merge, thin, download."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import SEED, json_option, name_of
from ludus.cli.render import ago, echo, number, print_facts, print_json, print_result, print_table, size
from ludus.client import Client
from ludus.schemas import DemonstrationStatistics, RecordedBehavior, Spread

BARS = " ▁▂▃▄▅▆▇█"
SUFFIXES = {"mlagents": ".demo", "ludus": ".npz"}

name_option = click.option("--name", help="Name for display.")


@click.group()
def demonstration() -> None:
    """Store demonstrations, for behavioral cloning and GAIL. Configurations name them by id."""


@demonstration.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@name_option
@json_option
@connected
def upload(client: Client, *, paths: tuple[Path, ...], name: str | None, as_json: bool) -> None:
    """Upload PATHS: files (ML-Agents' .demo, or .npz of `ludus simulate --record`), or folders of them.

    Prints an id for each file, in the order of the names within a folder. A configuration that lists all ids learns
    from them as from one, as ML-Agents does with a folder in `demo_path`.
    """
    stored = []
    for file in [file for path in paths for file in _files_of(path)]:
        stored.append(client.demonstrations.upload(file, name=name or name_of(file)))
        if not as_json:
            echo(stored[-1].id)
    if as_json:
        print_json(stored)


@demonstration.command("list")
@click.option("--filter", "filter_", default="", help="As in 'behavior = \"Walker*\" AND episodes >= 10'.")
@json_option
@connected
def list_(client: Client, *, filter_: str, as_json: bool) -> None:
    """List demonstrations, newest first."""
    found = list(client.demonstrations.list(filter_))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            each.name,
            each.behavior,
            number(each.transitions),
            number(each.episodes),
            number(each.mean_return),
            size(each.size),
            ago(each.created_at),
        )
        for each in found
    ]
    print_table(["id", "name", "behavior", "steps", "episodes", "return", "size", "created"], rows)


@demonstration.command()
@click.argument("demonstration_id", metavar="DEMONSTRATION")
@json_option
@connected
def show(client: Client, *, demonstration_id: str, as_json: bool) -> None:
    """Show DEMONSTRATION: observations, actions, episodes and returns."""
    found = client.demonstrations.get(demonstration_id)
    if as_json:
        print_json(found)
        return
    print_facts(
        [
            ("id", found.id),
            ("name", found.name),
            ("behavior", found.behavior),
            ("format", found.format),
            ("made from", _origin(found.origin)),
            ("size", size(found.size)),
            ("steps", number(found.transitions)),
            ("episodes", number(found.episodes)),
            ("fragments", number(found.summary.fragments)),
            ("returns", _spread(found.summary.returns)),
            ("lengths", _spread(found.summary.lengths)),
            *_observations(found.spec),
            *_histograms(found.summary),
        ]
    )


@demonstration.command()
@click.argument("demonstrations", nargs=-1, required=True, metavar="DEMONSTRATIONS...")
@name_option
@json_option
@connected
def merge(client: Client, *, demonstrations: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Make one demonstration of several; the originals stay. Prints its id."""
    made = client.demonstrations.merge(demonstrations, name=name)
    print_result(made, made.id, as_json=as_json)


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
@json_option
@connected
def subsample(
    client: Client,
    *,
    demonstration_id: str,
    count: int | None,
    episodes: int | None,
    every: int | None,
    seed: int | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Make a smaller demonstration of DEMONSTRATION, and print its id.

    `--episodes 10` keeps whole episodes, `--every 20` every 20th transition of each, COUNT keeps COUNT transitions,
    drawn without replacement. `--episodes 10 --every 20` thins demonstrations as in the literature on GAIL.
    """
    if count is not None and every is not None:
        raise click.UsageError("COUNT and --every both say which transitions: leave one of them out")
    if count is episodes is every is None:
        raise click.UsageError("say what to keep: --episodes, and --every or COUNT for transitions")
    made = client.demonstrations.subsample(
        demonstration_id, count, episodes=episodes, every=every, seed=seed, name=name
    )
    print_result(made, made.id, as_json=as_json)


@demonstration.command()
@click.argument("demonstration_id", metavar="DEMONSTRATION")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. [the demonstration's id, with .demo or .npz]",
)
@connected
def download(client: Client, *, demonstration_id: str, output: Path | None) -> None:
    """Download the file of DEMONSTRATION; its checksum is verified."""
    found = client.demonstrations.get(demonstration_id)
    target = output or Path(found.id + SUFFIXES.get(found.format, ""))
    try:
        echo(str(client.demonstrations.download(found.id, target)))
    except OSError as error:
        raise Failure(f"cannot write {target}: {error.strerror or error}", Exit.REFUSED) from error


@demonstration.command()
@click.argument("demonstrations", nargs=-1, required=True, metavar="DEMONSTRATIONS...")
@connected
def delete(client: Client, *, demonstrations: tuple[str, ...]) -> None:
    """Delete demonstrations. The server refuses while a run that has not ended uses one of them."""
    for each in demonstrations:
        client.demonstrations.delete(each)


def _files_of(path: Path) -> list[Path]:
    """Return a file, or the recordings of a folder (not of its folders)."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES.values())
    if not files:
        raise Failure(f"the folder {path} has no {' or '.join(SUFFIXES.values())} file", Exit.REFUSED)
    return files


def _origin(origin: Mapping[str, Any]) -> str:
    match origin:
        case {"merged": list(sources)}:
            return "merged: " + ", ".join(sources)
        case {"subsampled": source}:
            kept = [
                f"{origin['count']} transitions" if "count" in origin else "",
                f"every {origin['every']}. transition" if "every" in origin else "",
                f"{origin['episodes']} episodes" if "episodes" in origin else "",
            ]
            seed = f", seed {origin['seed']}" if "seed" in origin else ""
            return " of ".join([*filter(None, kept), str(source)]) + seed
        case _:
            return ""


def _spread(values: Spread | None) -> str:
    if values is None:
        return ""
    return f"{number(values.mean)} ± {number(values.std)} ({number(values.minimum)} to {number(values.maximum)})"


def _observations(spec: RecordedBehavior) -> Iterator[tuple[str, str]]:
    for index, observation in enumerate(spec.observations):
        shape = " x ".join(str(length) for length in observation.shape)
        yield f"observation {index}", f"{shape} {observation.dtype} {observation.name}".rstrip()


def _histograms(summary: DemonstrationStatistics) -> Iterator[tuple[str, str]]:
    for index, counts in enumerate(summary.continuous):
        yield f"continuous {index}", f"-1 |{_bars(counts)}| 1"
    for index, counts in enumerate(summary.discrete):
        yield f"branch {index}", ", ".join(f"{choice}: {number(count)}" for choice, count in enumerate(counts))


def _bars(counts: Sequence[int]) -> str:
    """Draw a histogram in one line; whatever is there at all shows."""
    highest = max(counts, default=0) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in counts)
