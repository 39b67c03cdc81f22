"""`ludus token`: tokens and their rights."""

from datetime import UTC, datetime

import click

from ludus.cli.client import answering, connected
from ludus.cli.options import duration, option
from ludus.cli.render import ago, echo, fields, print_facts, table
from ludus.client import Client
from ludus.schemas import Identity, NewToken, Token

SCOPES = ("read", "run", "admin", "simulate")


@click.group()
def token() -> None:
    """Make, list and revoke tokens. `ludus admin create-token` makes the first token of a server."""


def _show_once(made: NewToken) -> str:
    where = "all projects" if made.project == "*" else f"project {made.project}"
    bound = "".join(f", {kind} {id_}" for kind, id_ in (("run", made.run_id), ("ladder", made.ladder_id)) if id_)
    until = "until it is revoked" if made.expires_at is None else f"until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    rights = f"{', '.join(made.scopes)} in {where}{bound}, {until}"
    echo(f"{made.id}: {rights}. Keep it now, it is not shown again:", err=True)
    return made.token or ""


@token.command()
@click.argument("name")
@option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    default=("run",),
    help="read: read only; run: also create, change and simulate; admin: also tokens and audit; simulate: only "
    "simulate.",
)
@click.option("--for-project", help="Project of the token; * is all projects. [that of this command]")
@click.option("--run", help="The only run that the token is for; with --scope simulate to join, read to look at it.")
@click.option("--ladder", help="The only ladder that the token is for; with --scope read.")
@click.option(
    "--expires", "expires_in_seconds", type=duration, help="Lifetime, as in 12h or 90d. [until it is revoked]"
)
@answering(_show_once)
def create(
    client: Client,
    *,
    name: str,
    scopes: tuple[str, ...],
    for_project: str | None,
    run: str | None,
    ladder: str | None,
    expires_in_seconds: float | None,
) -> NewToken:
    """Make a token with the name NAME and print it on standard output, once."""
    return client.tokens.create(
        name, scopes, project=for_project, run=run, ladder=ladder, expires_in_seconds=expires_in_seconds
    )


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= datetime.now(UTC) else "valid"


@token.command("list")
@click.option("--all", "everything", is_flag=True, help="Include expired and revoked tokens.")
@answering(
    table(
        "id, name, scopes, project, bound_to, state, last_used",
        scopes=lambda each: ",".join(each.scopes),
        bound_to=lambda each: each.run_id or each.ladder_id or "",
        state=_state,
        last_used=lambda each: "never" if each.last_used_at is None else ago(each.last_used_at),
    )
)
def list_(client: Client, *, everything: bool) -> list[Token]:
    """List the project's tokens, newest first."""
    return [token for token in client.tokens.list() if everything or _state(token) == "valid"]


def _show(identity: Identity) -> None:
    bound = "all projects" if identity.project == "*" else identity.project
    print_facts(
        [*fields(identity, "name, scopes"), ("bound to", bound), *fields(identity, "acts_in, run_id, ladder_id")]
    )


@token.command("self")
@answering(_show)
def self_(client: Client) -> Identity:
    """Show the token of this client and its rights."""
    return client.tokens.current()


@token.command()
@click.argument("token_id", metavar="ID")
@connected
def revoke(client: Client, *, token_id: str) -> None:
    """Revoke the token with this ID."""
    client.tokens.revoke(token_id)
    echo(f"{token_id} is revoked; servers that have just seen it take it for up to 5 s more.")
