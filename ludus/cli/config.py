"""`ludus config`: stored configurations, named, in immutable versions."""

import json
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from textwrap import wrap
from typing import Final

import click
import yaml

from ludus.cli.client import answering, connected, place, sending
from ludus.cli.files import Text, TextFile, Unreadable, read_text
from ludus.cli.options import EXISTING, FILE, json_option
from ludus.cli.render import echo, print_answer, print_document, table
from ludus.client import Client, StoredConfig
from ludus.json_values import JsonObject
from ludus.plugins import broken
from ludus.schemas import ConfigDiff, ConfigSummary, ConfigUpgrade, ConfigVersion, Preset, PresetSummary

MAX_VALUE: Final = 60
"""Maximum number of characters of a value in a report."""


def stored_config(text: str, typed: str) -> StoredConfig:
    """Read NAME or NAME@VERSION. Raises UsageError, which quotes what was `typed`."""
    name, _, version = text.partition("@")
    if version and not version.isdecimal():
        raise click.UsageError(f"{version!r} in {typed} is not a version number")
    return StoredConfig(name, int(version) if version else None)


@click.group()
def config() -> None:
    """Store configurations by name. Versions count 1, 2, 3, ... and never change."""


@config.command()
@click.argument("name")
@click.argument("file", type=TextFile())
@click.option("--description", default="", help="What it is for.")
@answering(lambda stored: f"{stored.name}@{stored.version}")
def create(client: Client, *, name: str, file: Text, description: str) -> ConfigVersion:
    """Store FILE (`-` is standard input) as the next version of NAME; an equal one is not stored twice."""
    with sending(file.name):
        return client.configs.create(name, file.content, description=description)


@config.command("list")
@click.argument("name", required=False)
@answering(table("name, version, created_at, description"))
def list_(client: Client, *, name: str | None) -> Iterator[ConfigSummary]:
    """List the names, or the versions of NAME, newest first."""
    return client.configs.list() if name is None else client.configs.list_versions(name)


@config.command()
@click.argument("name")
@click.option("--resolved", is_flag=True, help="With every default filled in.")
@json_option
@connected
def show(client: Client, *, name: str, resolved: bool, as_json: bool) -> None:
    """Print a configuration as it was stored. NAME@VERSION picks a version."""
    requested = stored_config(name, name)

    def show(stored: ConfigVersion) -> None:
        print_document(stored.resolved if resolved else stored.source)

    print_answer(client.configs.get(requested.name, requested.version), show, as_json=as_json)


@config.command()
@answering(table("name, trainers=trainer_types, description"))
def presets(client: Client) -> Sequence[PresetSummary]:
    """List the configurations that come with the server and are known to work."""
    return client.presets.list()


@config.command()
@click.argument("name")
@answering(lambda found: print_document(found.source))
def preset(client: Client, *, name: str) -> Preset:
    """Print a preset, for instance to create a run with it.

    \b
    ludus config preset cartpole | ludus run create -
    """
    return client.presets.get(name)


def _print_diff(found: ConfigDiff) -> None:
    for change in found.changes:
        if change.kind != "added":
            echo(f"- {change.path}: {_value(change.old)}")
        if change.kind != "removed":
            echo(f"+ {change.path}: {_value(change.new)}")


@config.command()
@click.argument("name")
@click.argument("old", type=click.IntRange(min=1))
@click.argument("new", type=click.IntRange(min=1), required=False)
@click.option("--run", metavar="RUN", help="Compare with what this run was created with, instead of NEW.")
@answering(_print_diff)
def diff(client: Client, *, name: str, old: int, new: int | None, run: str | None) -> ConfigDiff:
    """Compare versions OLD and NEW of NAME, every default filled in."""
    if (new is None) == (run is None):
        raise click.UsageError("Give either NEW or --run RUN.")
    return client.configs.diff(name, old, new, run=run)


@config.command()
@click.argument("file", type=TextFile())
@click.option(
    "--curriculum",
    type=EXISTING,
    help="Curricula, up to 0.16: a YAML file by behavior, a JSON file named after its behavior, or a folder of them.",
)
@click.option("--sampler", type=TextFile(), help="File of samplers, up to 0.16.")
@click.option("-o", "--output", type=FILE, help="Output file [standard output].")
@json_option
@connected
def upgrade(
    client: Client, *, file: Text, curriculum: Path | None, sampler: Text | None, output: Path | None, as_json: bool
) -> None:
    """Convert FILE, of any release of ML-Agents, into the present format (`-` is standard input).

    Prints changed and dropped keys, and remaining tasks, to standard error. Comments are not kept.
    """
    lessons: JsonObject | str | None = None
    if curriculum is not None and curriculum.is_dir():
        files = sorted(curriculum.glob("*.json"))
        if not files:
            raise click.UsageError(f"there is no JSON file in {curriculum}")
        lessons = {name: form for path in files for name, form in _json_curricula(path).items()}
    elif curriculum is not None:
        lessons = _json_curricula(curriculum) if curriculum.suffix == ".json" else _text(curriculum)
    samplers = None if sampler is None else sampler.content
    with sending(file.name):
        done = client.configs.upgrade(file.content, curriculum=lessons, sampler=samplers)
    if output is not None:
        output.write_text(done.document, encoding="utf-8")

    def show(done: ConfigUpgrade) -> None:
        if output is None:
            print_document(done.document)
        for line in _report(done, output):
            echo(line, err=True)

    print_answer(done, show, as_json=as_json)


@config.command()
@click.argument("key", nargs=-1)
def reference(*, key: tuple[str, ...]) -> None:
    """Print types, ranges, defaults and meanings of keys, with those of installed plug-ins: of each KEY, or of all.

    \b
    ludus config reference network_settings     a section
    ludus config reference hidden_units         a key, wherever it is
    ludus config reference ppo                  what a trainer adds
    """
    try:
        from ludus.config.reference import find  # noqa: PLC0415  # a light installation reads no configurations
    except ModuleNotFoundError as error:
        reason = f"`ludus config reference` needs the extra `collect` ({error.name} is missing)"
        raise click.ClickException(f"{reason}: pip install 'ludus[collect]'") from error
    for query in key or ("",):
        sections = list(find(query))
        if not sections:
            raise click.UsageError(f"no section, key or trainer is called {query!r}; without KEY all are printed")
        for title, section, entries in sections:
            lines = [title, *cleandoc(section.__doc__ or "").splitlines(), ""]
            for entry in entries:
                facts = [entry.type.replace("`", ""), entry.range, f"default {entry.default}"]
                lines += [
                    f"  {entry.key}: {', '.join(filter(None, facts))}",
                    *(f"      {line}" for line in wrap(entry.text, 100)),
                    "",
                ]
            for line in lines:
                echo(line)
    for problem in broken():
        echo(f"left out: {problem}", err=True)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except Unreadable as error:
        raise click.UsageError(str(error)) from error


def _json_curricula(path: Path) -> JsonObject:
    """Read curricula by behavior; a file with one curriculum is named after its behavior."""
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from error
    except RecursionError as error:
        raise click.UsageError(f"{path} is nested too deeply for a curriculum") from error
    if not isinstance(content, dict):
        raise click.UsageError(f"{path} holds no curriculum but a {type(content).__name__}")
    return {path.stem: content} if "thresholds" in content else content


def _report(done: ConfigUpgrade, output: Path | None) -> Iterator[str]:
    """Yield a line for each change, dropped key and problem; problems with their lines in the new file."""
    if done.unchanged:
        yield "unchanged: this is the format of today"
    for change in done.changes:
        values = "" if change.old is None and change.new is None else f" ({_short(change.old)} -> {_short(change.new)})"
        yield f"~ {change.path} -> {change.to}{values}: {change.why}"
    for drop in done.dropped:
        yield f"- {drop.path} ({_short(drop.value)}): {drop.why}"
    for problem in done.problems:
        where = place(problem.line, "" if output is None else str(output))
        yield f"! {where}{problem.path or '(document)'}: {problem.message}"


def _short(value: object) -> str:
    text = _value(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def _value(value: object) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).removesuffix("...\n").strip()
    )
