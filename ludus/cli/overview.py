"""`ludus audit | events | queue | simulator`: what happens on a server."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click

from ludus.cli.client import answering, connected
from ludus.cli.ending import event_line
from ludus.cli.exits import INTERRUPTED
from ludus.cli.options import duration, filter_option, json_option, limit_option
from ludus.cli.render import echo, end_without_reader, print_json_line, table
from ludus.client import Client
from ludus.schemas import AuditEntry, Queue, SimulatorListed


@click.command()
@filter_option('status >= 400 AND actor = "ci"')
@limit_option("entries", 50)
@answering(
    table(
        "at (UTC)=at, who=actor, status, method, path=target, from=client, request_id",
        at=lambda entry: f"{entry.at:%Y-%m-%d %H:%M:%S}",
    )
)
def audit(client: Client, *, filter_: str, limit: int) -> Iterator[AuditEntry]:
    """List the requests that changed something in the project, or tried to, newest first."""
    return client.audit.list(filter_, limit=limit)


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


def _show_queue(waiting: Queue) -> None:
    if not waiting.runs:
        echo("No run waits for a worker.")
        return
    table(
        "demand, runs, startable=startable_runs, waited, idle, busy, cordoned, missing=missing_slots, pool",
        waited=lambda demanded: f"{demanded.oldest_seconds:.0f} s",
        idle=lambda demanded: demanded.slots.idle,
        busy=lambda demanded: demanded.slots.busy,
        cordoned=lambda demanded: demanded.slots.cordoned,
    )(waiting.demands)
    for demanded in waiting.demands:
        if demanded.explanation is not None:
            echo(f"{demanded.demand}: {demanded.explanation}")


@click.command()
@click.option("--demand", help="Only runs with exactly this demand: GPUs and labels, as in 0, 1 or '1;a100,linux'.")
@click.option("--pool", help="Only runs for which this pool starts workers (LUDUS_SCHEDULING__POOLS).")
@answering(_show_queue)
def queue(client: Client, *, demand: str | None, pool: str | None) -> Queue:
    """Show the runs of all projects that wait for a worker, by their demand, and the slots that serve them.

    DEMAND is the number of GPUs, and labels after a semicolon. STARTABLE are the runs that quotas allow to be in
    training; MISSING the slots that they lack beyond the idle ones. Needs a token with read in all projects.
    """
    return client.queue.get(demand, pool)


@click.group()
def simulator() -> None:
    """Show the game processes that play in runs. `ludus simulate` and `ludus unity` start them."""


@simulator.command("list")
@click.option("--run", help="Only those of a run: an id, or a name, the newest run of that name.")
@click.option("--state", type=click.Choice(["joined", "connected", "left"]), help="Only those in this state.")
@click.option("--left-within", type=duration, help="Only those that left so lately, as in 90s or 10m, newest first.")
@filter_option("leave_code = shape_mismatch")
@limit_option("simulators", 50)
@answering(
    table(
        "run=run_name, session=session_id, label, state, client, peer, behaviors, agents, steps, joined_at, left_at, "
        "code=leave_code"
    )
)
def list_(
    client: Client, *, run: str | None, state: str | None, left_within: float | None, filter_: str, limit: int
) -> Iterator[SimulatorListed]:
    """List the simulators of all runs, newest first, and why those left that are gone.

    \b
    ludus simulator list --state connected
    ludus simulator list --left-within 10m
    """
    conditions = [filter_] if filter_ else []
    conditions += [f"run_id = {client.runs.get(run).id}"] if run is not None else []
    conditions += [f"state = {state}"] if state is not None else []
    if left_within is not None:
        conditions.append(f"left_at >= {(datetime.now(UTC) - timedelta(seconds=left_within)).isoformat()}")
    order = "" if left_within is None else "left_at desc"
    return client.simulators.list_all(" AND ".join(conditions), order, limit)
