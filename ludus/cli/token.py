"""`ludus token`: tokens and their rights."""

from datetime import UTC, datetime
from typing import Any

import click

from ludus.cli.client import connected
from ludus.cli.options import Duration, json_option
from ludus.cli.render import ago, echo, print_facts, print_json, print_table
from ludus.client import Client
from ludus.schemas import Token

SCOPES = ("read", "run", "admin", "simulate")


@click.group()
def token() -> None:
    """Make, list and revoke tokens. `ludus admin create-token` makes the first token of a server."""


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    default=("run",),
    show_default=True,
    help="read: read only; run: also create, change and simulate; admin: also tokens and audit; simulate: only "
    "simulate.",
)
@click.option("--for-project", help="Project of the token; * is all projects. [that of this command]")
@click.option("--run", help="The only run that the token may join; with --scope simulate.")
@click.option("--expires", type=Duration(), help="Lifetime, as in 12h or 90d. [until it is revoked]")
@json_option
@connected
def create(
    client: Client,
    *,
    name: str,
    scopes: tuple[str, ...],
    for_project: str | None,
    run: str | None,
    expires: float | None,
    as_json: bool,
) -> None:
    """Make a token with the name NAME and print it on standard output, once."""
    made = client.tokens.create(name, scopes, project=for_project, run=run, expires_in_seconds=expires)
    if as_json:
        print_json(made)
        return
    echo(f"{made.id}: {_summary(made)}. Keep it now, it is not shown again:", err=True)
    echo(made.token or "")


@token.command("list")
@click.option("--all", "everything", is_flag=True, help="Include expired and revoked tokens.")
@json_option
@connected
def list_(client: Client, *, everything: bool, as_json: bool) -> None:
    """List the project's tokens, newest first."""
    found = [each for each in client.tokens.list() if everything or _state(each) == "valid"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            each.name,
            ",".join(each.scopes),
            each.project,
            each.run_id or "",
            _state(each),
            "never" if each.last_used_at is None else ago(each.last_used_at),
        )
        for each in found
    ]
    print_table(["id", "name", "scopes", "project", "run", "state", "last used"], rows)


@token.command("self")
@json_option
@connected
def self_(client: Client, *, as_json: bool) -> None:
    """Show the token of this client and its rights."""
    own = client.tokens.current()
    if as_json:
        print_json(own)
        return
    facts: dict[str, Any] = {
        "name": own.name,
        "scopes": ", ".join(own.scopes),
        "bound to": "all projects" if own.project == "*" else own.project,
        "acts in": own.acts_in,
        "run": own.run_id or "",
    }
    print_facts(list(facts.items()))


@token.command()
@click.argument("token_id", metavar="ID")
@connected
def revoke(client: Client, *, token_id: str) -> None:
    """Revoke the token with this ID."""
    client.tokens.revoke(token_id)
    echo(f"{token_id} is revoked; servers that have just seen it take it for up to 5 s more.")


def _summary(made: Token) -> str:
    where = "all projects" if made.project == "*" else f"project {made.project}"
    bound = f", run {made.run_id}" if made.run_id else ""
    until = "until it is revoked" if made.expires_at is None else f"until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    return f"{', '.join(made.scopes)} in {where}{bound}, {until}"


def _state(each: Token) -> str:
    if each.revoked_at is not None:
        return "revoked"
    return "expired" if each.expires_at is not None and each.expires_at <= datetime.now(UTC) else "valid"
