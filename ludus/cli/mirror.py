"""`ludus run mirror RUN DIR`: a run's results as files on this machine, TensorBoard's among them."""

import time
from functools import partial
from pathlib import Path

import click

from ludus.cli import exits
from ludus.cli.client import Failure, connected
from ludus.cli.exits import INTERRUPTED, OUTCOMES, Exit
from ludus.cli.options import FOLDER
from ludus.cli.render import LINES, echo
from ludus.client import TERMINAL_STATES, Client
from ludus.client.backoff import ServerBackoff
from ludus.mlagents.results import Folder, Mirror
from ludus.mlagents.results.folder import ResultsUnusable

POLL_SECONDS = 1.0


@click.command(epilog=exits.HELP)
@click.argument("run")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--once", is_flag=True, help="Copy the present state, and do not follow the run.")
@connected
def mirror(client: Client, *, run: str, folder: Path, once: bool) -> None:
    """Write the results of RUN to DIR as `mlagents-learn` does, and follow the run until it ends.

    \b
    ludus run mirror nightly results/nightly &
    tensorboard --logdir results

    Event files for TensorBoard, `configuration.yaml`, checkpoints and models. Interrupted, it continues
    when it is started again; a run that has ended is copied as a whole. The run itself does not change.
    """
    found = client.runs.get(run)
    target = Folder(folder)
    try:
        journal = target.read_journal()
        if journal is not None and found.id not in {journal.run, *journal.former}:
            raise Failure(f"{folder.as_posix()} has the results of run {journal.run}; name another folder", Exit.USAGE)
        began = found.created_at.timestamp()  # not the start of this command, which may be started again
        with Mirror(
            client, found, target, say=partial(echo, kept=LINES), began=began, server=client.server
        ) as mirrored:
            ended = _follow(mirrored, once=once)
    except ResultsUnusable as error:
        raise Failure(str(error), Exit.REFUSED) from error
    except OSError as error:
        raise Failure(f"the results cannot be written: {error}", Exit.REFUSED) from error
    except KeyboardInterrupt:
        echo(f"{found.id} continues; `ludus run mirror` resumes where it stopped", err=True)
        raise SystemExit(INTERRUPTED) from None
    if ended is not None:
        raise SystemExit(OUTCOMES[ended])


def _follow(mirrored: Mirror, *, once: bool) -> str | None:
    """Copy new results until the run has ended; return its final state, None with `once` before that."""
    backoff = ServerBackoff()
    while True:
        state = backoff.persist(mirrored.sync).state
        if state in TERMINAL_STATES:
            backoff.persist(mirrored.finish)
            return state
        if once:
            return None
        time.sleep(POLL_SECONDS)
