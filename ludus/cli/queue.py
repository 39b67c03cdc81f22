"""`ludus queue`: the runs that wait for a worker, by what they demand of a slot."""

import click

from ludus.cli.client import connected
from ludus.cli.options import json_option
from ludus.cli.render import echo, print_json, table
from ludus.client import Client

_DEMANDS = table(
    "demand, runs, startable=startable_runs, waited, idle, busy, cordoned, missing=missing_slots, pool",
    waited=lambda each: f"{each.oldest_seconds:.0f} s",
    idle=lambda each: each.slots.idle,
    busy=lambda each: each.slots.busy,
    cordoned=lambda each: each.slots.cordoned,
)


@click.command()
@click.option("--demand", help="Only runs with exactly this demand: GPUs and labels, as in 0, 1 or '1;a100,linux'.")
@click.option("--pool", help="Only runs for which this pool starts workers (LUDUS_SCHEDULING__POOLS).")
@json_option
@connected
def queue(client: Client, *, demand: str | None, pool: str | None, as_json: bool) -> None:
    """Show the runs of all projects that wait for a worker, by their demand, and the slots that serve them.

    DEMAND is the number of GPUs, and labels after a semicolon. STARTABLE are the runs that quotas allow to be in
    training; MISSING the slots that they lack beyond the idle ones. Needs a token with read in all projects.
    """
    found = client.queue.get(demand, pool)
    if as_json:
        print_json(found)
        return
    if not found.runs:
        echo("No run waits for a worker.")
        return
    _DEMANDS(found.demands)
    for each in found.demands:
        if each.explanation is not None:
            echo(f"{each.demand}: {each.explanation}")
