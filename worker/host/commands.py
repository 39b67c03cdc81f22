"""The worker's command: `ludus worker`."""

import mmap
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ludus.protocol.tls import is_loopback
from server.commands import load_settings, one_sentence_errors
from server.kit.ports import CannotStart


class Exposed(CannotStart):
    """Collectors would listen beyond this machine without a key to verify tickets with."""

    exit_code = 2

    def __init__(self, host: str) -> None:
        super().__init__(
            f"Collectors would listen on {host} without access control: set LUDUS_GATEWAY__TICKET_KEY to the gateway's "
            "key, or listen on 127.0.0.1 (LUDUS_WORKER__BIND_HOST)."
        )


@click.command()
@click.option("--slots", type=click.IntRange(min=1), help="Runs to train at once on this host. [one per GPU, else one]")
def worker(slots: int | None) -> None:
    """Execute training runs on this host."""
    overrides: Mapping[str, Any] = {} if slots is None else {"worker": {"slots": slots}}
    settings = load_settings(**overrides)
    with one_sentence_errors():
        if settings.gateway.ticket_key is None and not is_loopback(settings.worker.bind_host):
            raise Exposed(settings.worker.bind_host)
    if settings.telemetry.worker_port:
        share_metrics(settings.worker.scratch / "metrics")
    from ludus.logging import configure_logging  # noqa: PLC0415
    from worker.host.gpus import check_free  # noqa: PLC0415
    from worker.host.tasks import RESTARTING, HostResources, build  # noqa: PLC0415

    configure_logging("worker", log_format=settings.log.format, level=settings.log.level)
    settings.worker.scratch.mkdir(parents=True, exist_ok=True)
    # Celery warns of root because of pickled messages; here no message is unpickled.
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
    # Numerical libraries in the slots' own processes never compute; trainers set their threads themselves.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if settings.database.await_schema_seconds:
        from server.kit.db.migrate import await_schema  # noqa: PLC0415  Alembic, which workers do not need otherwise

        with one_sentence_errors():
            await_schema(settings.database)
    resources = HostResources.find(settings.worker)
    if not settings.worker.share_gpus:
        with one_sentence_errors():
            check_free([gpu for slot in resources.gpus or () for gpu in slot])
    shared = mmap.mmap(-1, 2)  # anonymous and shared: children see what the parent writes, and the parent what they do
    try:
        build(settings, resources, shared).worker_main(
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
        if shared[RESTARTING]:
            # The process keeps its id, so that its service manager sees no exit.
            again = ["worker"] if slots is None else ["worker", "--slots", str(slots)]
            os.execv(sys.executable, [sys.executable, "-m", "ludus.cli", *again])  # noqa: S606


def share_metrics(folder: Path) -> None:
    """Make the slots' processes count in one folder. prometheus_client reads the variable when it is imported."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)


COMMANDS: dict[str, click.Command] = {"worker": worker}
"""The commands that `worker` adds to `ludus`."""
