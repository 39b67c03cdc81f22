"""`ludus worker`: the slots of worker hosts, and cordon, uncordon, drain before a host's maintenance.

Where the worker's package is installed, its command has these as subcommands (`worker.host.commands`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import click

from ludus.cli import client_only
from ludus.cli.client import Failure, answering
from ludus.cli.exits import Exit
from ludus.cli.options import duration, filter_option, limit_option
from ludus.cli.render import ago, echo, table
from ludus.client import Client
from ludus.client.backoff import ServerBackoff
from ludus.schemas import Worker

POLL_SECONDS: Final = 1.0


class ClientGroup(click.Group):
    """The subcommands alone, in an installation without the worker."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; options of the worker itself are answered with what to install."""
        if args and args[0].startswith("-"):
            raise client_only("worker")
        return super().resolve_command(ctx, args)


@click.group(cls=ClientGroup, invoke_without_command=True, context_settings={"ignore_unknown_options": True})
@click.pass_context
def worker(ctx: click.Context) -> None:
    """Show, cordon and drain the slots of worker hosts. The worker itself needs the extra `worker`."""
    if ctx.invoked_subcommand is None:
        raise client_only("worker")


def state_of(slot: Worker) -> str:
    """Return the state of a slot in one word or two."""
    if slot.stopped_at is not None:
        return "stopped"
    if slot.silent_since is not None:
        return f"silent since {slot.silent_since.astimezone():%Y-%m-%d %H:%M:%S}"
    busy = slot.run_id is not None
    if slot.draining:
        return "draining" if busy else "drained"
    return f"{'busy' if busy else 'idle'}{', cordoned' if slot.cordoned else ''}"


_SLOTS = table(
    "id, state, gpus, labels, run_id, heartbeat, version",
    state=state_of,
    gpus=lambda slot: len(slot.resources.get("gpus") or ()),
    labels=lambda slot: ",".join(slot.labels),
    heartbeat=lambda slot: ago(slot.heartbeat_at),
)


@worker.command("list")
@filter_option("host = box-1")
@limit_option("slots", 200)
@answering(_SLOTS)
def list_(client: Client, *, filter_: str, limit: int) -> Sequence[Worker]:
    """List the slots of all worker hosts, newest first, also those that stopped or fell silent a while ago."""
    return client.workers.list(filter_, limit)


@worker.command()
@click.argument("worker")
@answering(_SLOTS)
def cordon(client: Client, *, worker: str) -> Sequence[Worker]:
    """Keep runs away from WORKER: a slot (HOST/PID/START), or a host. The runs that it has go on.

    The cordon of a host also holds for slots that start there later, until `ludus worker uncordon`.
    """
    return client.workers.cordon(worker)


@worker.command()
@click.argument("worker")
@answering(_SLOTS)
def uncordon(client: Client, *, worker: str) -> Sequence[Worker]:
    """Lift the cordon of WORKER, a slot or a host with all of its slots: it takes runs again."""
    return client.workers.uncordon(worker)


@worker.command()
@click.argument("worker")
@click.option("--wait", "wait_", is_flag=True, help="Wait until no slot of it has a run.")
@click.option("--timeout", type=duration, help="With --wait: give up after this time, with exit code 7. [never]")
@answering(_SLOTS)
def drain(client: Client, *, worker: str, wait_: bool, timeout: float | None) -> Sequence[Worker]:
    """Cordon WORKER, a slot or a host, and move its runs: each saves a checkpoint and goes to another slot.

    \b
    ludus worker drain box-1 --wait
    """
    backoff = ServerBackoff(timeout)
    slots = client.workers.drain(worker)
    while wait_ and (busy := [slot for slot in slots if slot.run_id is not None and slot.stopped_at is None]):
        if backoff.over:
            runs = ", ".join(str(slot.run_id) for slot in busy)
            raise Failure(
                f"{worker} is not drained after {timeout:g} s (--timeout): it still has {runs}", Exit.TIMED_OUT
            )
        backoff.sleep(POLL_SECONDS)
        slots = backoff.persist(partial(client.workers.selected, worker))
    if wait_:
        echo(f"{worker} is drained: no slot of it has a run.", err=True)
    return slots
