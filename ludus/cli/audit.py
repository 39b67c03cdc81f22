"""`ludus audit`: lists the changes on a server."""

import click

from ludus.cli.client import connected
from ludus.cli.options import json_option
from ludus.cli.render import print_json, print_table
from ludus.client import Client


@click.command()
@click.option("--filter", "filter_", default="", help='As in: status >= 400 AND actor = "ci".')
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of entries.")
@json_option
@connected
def audit(client: Client, *, filter_: str, limit: int, as_json: bool) -> None:
    """List the requests that changed something in the project, or tried to, newest first."""
    found = list(client.audit.list(filter_, limit=limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            f"{each.at:%Y-%m-%d %H:%M:%S}",
            each.actor,
            each.status,
            each.method,
            each.target,
            each.client,
            each.request_id,
        )
        for each in found
    ]
    print_table(["at (UTC)", "who", "status", "method", "path", "from", "request"], rows)
