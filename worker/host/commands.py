"""The worker's command: `ludus worker`, with the client's subcommands about slots (`ludus.cli.worker`)."""

import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ludus.cli.options import duration
from ludus.protocol.tls import is_loopback
from server.commands import load_settings, one_sentence_errors
from server.kit.ports import CannotStart
from server.kit.tracing import check_installed


class Exposed(CannotStart):
    """Collectors would listen beyond this machine without a key to verify tickets with."""

    exit_code = 2

    def __init__(self, host: str) -> None:
        super().__init__(
            f"Collectors would listen on {host} without access control: set LUDUS_GATEWAY__TICKET_KEY to the gateway's "
            "key, or listen on 127.0.0.1 (LUDUS_WORKER__BIND_HOST)."
        )


EXIT_CODES = """\b
Exit codes:
  0  stopped by a signal, after the one run of --once, or after the idle time of --idle-exit
  1  it cannot start, or cannot go on, or its slot's process died with the run of --once; standard error says why
  2  the command line or a setting is wrong"""


class WorkerGroup(click.Group):
    """The worker's command with the client's subcommands, which are imported when one of them is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        from ludus.cli.worker import worker as client  # noqa: PLC0415

        return client.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one subcommand."""
        from ludus.cli.worker import worker as client  # noqa: PLC0415

        return client.get_command(ctx, cmd_name)


@click.group(cls=WorkerGroup, invoke_without_command=True, epilog=EXIT_CODES)
@click.option("--slots", type=click.IntRange(min=1), help="Runs to train at once on this host. [one per GPU, else one]")
@click.option("--once", is_flag=True, help="Execute one run, on one slot with all GPUs, then exit.")
@click.option("--idle-exit", type=duration, help="Exit when no slot has had a run for this time, as in 60, 60s or 5m.")
@click.pass_context
def worker(ctx: click.Context, slots: int | None, once: bool, idle_exit: float | None) -> None:
    """Execute training runs on this host; or show, cordon and drain slots.

    With --once and --idle-exit it also exits if no run comes. A run that fails does not change the exit code: its state
    is in the database. With --once it exits with 1 if the process of its slot is killed with the run, which another
    worker resumes. SIGTERM hands runs back with a checkpoint.
    """
    if ctx.invoked_subcommand is not None:
        return
    if once and slots not in {None, 1}:
        raise click.UsageError(f"--once executes one run, on one slot, but --slots is {slots}: leave --slots out.")
    options = ([] if slots is None else ["--slots", str(slots)]) + ["--once"] * once
    options += [] if idle_exit is None else ["--idle-exit", str(idle_exit)]
    slots = 1 if once else slots
    overrides: Mapping[str, Any] = {} if slots is None else {"worker": {"slots": slots}}
    settings = load_settings(**overrides)
    with one_sentence_errors():
        if settings.gateway.ticket_key is None and not is_loopback(settings.worker.bind_host):
            raise Exposed(settings.worker.bind_host)
        check_installed(settings.telemetry)  # slots could only say so in the log
    if settings.telemetry.worker_port:
        share_metrics(settings.worker.scratch / "metrics")
    from ludus.logging import configure_logging  # noqa: PLC0415
    from server.kit.db.checks import check_database, check_migrated  # noqa: PLC0415
    from worker.host.ending import Limits, SharedState  # noqa: PLC0415
    from worker.host.gpus import check_free  # noqa: PLC0415
    from worker.host.tasks import HostResources, build  # noqa: PLC0415

    configure_logging("worker", log_format=settings.log.format, level=settings.log.level)
    # Celery warns of root because of pickled messages; here no message is unpickled.
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
    # Numerical libraries in the slots' own processes never compute; trainers set their threads themselves.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with one_sentence_errors():
        check_database(settings.database)
        settings.worker.scratch.mkdir(parents=True, exist_ok=True)
        resources = HostResources.find(settings.worker)
        if not settings.worker.share_gpus:
            check_free([gpu for slot in resources.gpus or () for gpu in slot])
        if settings.database.await_schema_seconds:
            from server.kit.db.migrate import await_schema  # noqa: PLC0415  Alembic, which workers rarely need

            await_schema(settings.database)
        else:
            check_migrated(settings.database)
    shared = SharedState(resources.slots)
    try:
        build(settings, resources, shared, Limits(once, idle_exit)).worker_main(
            [
                "--quiet",  # its banner is not a log line
                "worker",
                "--pool=prefork",
                f"--concurrency={resources.slots}",
                "--loglevel=WARNING",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
        )
    finally:
        if shared.flags.restarting:
            # The process keeps its id, so that its service manager sees no exit.
            os.execv(sys.executable, [sys.executable, "-m", "ludus.cli", "worker", *options])  # noqa: S606
    if shared.flags.lost:
        ctx.exit(1)


def share_metrics(folder: Path) -> None:
    """Make the slots' processes count in one folder. prometheus_client reads the variable when it is imported."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)


COMMANDS: dict[str, click.Command] = {"worker": worker}
"""The commands that `worker` adds to `ludus`."""
