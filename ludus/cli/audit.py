"""`ludus audit`: lists the changes on a server."""

from collections.abc import Iterator

import click

from ludus.cli.client import answering
from ludus.cli.options import filter_option, limit_option
from ludus.cli.render import table
from ludus.client import Client
from ludus.schemas import AuditEntry


@click.command()
@filter_option('status >= 400 AND actor = "ci"')
@limit_option("entries", 50)
@answering(
    table(
        "at (UTC)=at, who=actor, status, method, path=target, from=client, request_id",
        at=lambda each: f"{each.at:%Y-%m-%d %H:%M:%S}",
    )
)
def audit(client: Client, *, filter_: str, limit: int) -> Iterator[AuditEntry]:
    """List the requests that changed something in the project, or tried to, newest first."""
    return client.audit.list(filter_, limit=limit)
