"""`ludus events`: the events of all runs of a project."""

import sys

import click

from ludus.cli.client import connected
from ludus.cli.exits import INTERRUPTED
from ludus.cli.options import json_option
from ludus.cli.render import echo, end_without_reader, event_line, print_json_line
from ludus.client import Client


@click.command()
@json_option
@connected
def events(client: Client, *, as_json: bool) -> None:
    """Print the events of all runs of the project as they happen. Ctrl-C ends it.

    With --json each event is one line. `ludus run watch` follows a single run.
    """
    try:
        for event in client.events.follow_project():
            if as_json:
                print_json_line(event)
            else:
                echo(event_line(event, event.run_name))
            end_without_reader()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
