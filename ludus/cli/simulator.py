"""`ludus simulator`: the simulators of all runs, connected and past."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click

from ludus.cli.client import answering
from ludus.cli.options import DURATION, filter_option, limit_option
from ludus.cli.render import table
from ludus.client import Client
from ludus.schemas import SimulatorListed


@click.group()
def simulator() -> None:
    """Show the game processes that play in runs. `ludus simulate` and `ludus unity` start them."""


@simulator.command("list")
@click.option("--run", help="Only those of a run: an id, or a name, the newest run of that name.")
@click.option("--state", type=click.Choice(["joined", "connected", "left"]), help="Only those in this state.")
@click.option("--left-within", type=DURATION, help="Only those that left so lately, as in 90s or 10m, newest first.")
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
