"""`ludus config`: stored configurations, named, in immutable versions."""

from typing import Any

import click
import yaml

from ludus.api import Client
from ludus.cli.client import ClientGroup, connected
from ludus.cli.options import json_option
from ludus.cli.render import ago, print_json, print_table


@click.group(cls=ClientGroup)
def config() -> None:
    """Store configurations by name. Versions count 1, 2, 3, ... and never change."""


@config.command()
@click.argument("name")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--description", default="", help="What it is for.")
@json_option
@connected
def create(client: Client, *, name: str, file: Any, description: str, as_json: bool) -> None:
    """Store FILE (`-` is standard input) as the next version of NAME; an equal one is not stored twice."""
    stored = client.create_config(name, file.read(), description=description)
    if as_json:
        print_json(stored)
    else:
        click.echo(f"{stored.name}@{stored.version}")


@config.command("list")
@click.argument("name", required=False)
@json_option
@connected
def list_(client: Client, *, name: str | None, as_json: bool) -> None:
    """List the names, or the versions of NAME, newest first."""
    found = list(client.list_configs() if name is None else client.list_config_versions(name))
    if as_json:
        print_json(found)
        return
    rows = [(each.name, each.version, ago(each.created_at), each.description) for each in found]
    print_table(["name", "version", "created", "description"], rows)


@config.command()
@click.argument("name")
@click.option("--resolved", is_flag=True, help="With every default filled in.")
@json_option
@connected
def show(client: Client, *, name: str, resolved: bool, as_json: bool) -> None:
    """Print a configuration as it was stored. NAME@VERSION picks a version."""
    base, _, version = name.partition("@")
    if version and not version.isdecimal():
        raise click.UsageError(f"{version!r} in {name} is not a version number")
    stored = client.get_config(base, int(version) if version else None)
    if as_json:
        print_json(stored)
    elif resolved:
        click.echo(yaml.safe_dump(stored.resolved, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(stored.source, nl=not stored.source.endswith("\n"))


@config.command()
@click.argument("name")
@click.argument("old", type=click.IntRange(min=1))
@click.argument("new", type=click.IntRange(min=1))
@json_option
@connected
def diff(client: Client, *, name: str, old: int, new: int, as_json: bool) -> None:
    """Compare versions OLD and NEW of NAME, every default filled in."""
    found = client.diff_configs(name, old, new)
    if as_json:
        print_json(found)
        return
    for change in found.changes:
        if change.kind != "added":
            click.echo(f"- {change.path}: {_value(change.old)}")
        if change.kind != "removed":
            click.echo(f"+ {change.path}: {_value(change.new)}")


def _value(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).removesuffix("...\n").strip()
    )
