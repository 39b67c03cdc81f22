"""`ludus learn`: `mlagents-learn` with one word changed. Its flags, its file, its console, its results folder.

It trains in a run on a Ludus server (`--server`, `LUDUS_SERVER`), or on one that is started for this call: a child
process `ludus up`, since users install this module without the server's packages. Exit codes are ML-Agents': 0 at a
normal end and after Ctrl-C, 1 for errors, 2 for a wrong command line.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click

from ludus.child_process import ChildProcess
from ludus.cli.client import explain
from ludus.cli.exits import INTERRUPTED
from ludus.cli.learn_options import LearnError, LearnSettings, parse, read_settings
from ludus.cli.learn_run import (
    Interrupts,
    MakePlayers,
    begin_anew,
    check_build,
    follow,
    greeting,
    open_run,
    players_of,
    warn,
)
from ludus.cli.render import LINES, echo
from ludus.client import ApiError, Client
from ludus.mlagents.results import Folder, Mirror
from ludus.mlagents.results.console import info
from ludus.mlagents.results.folder import ResultsUnusable
from ludus.protocol.credentials import SIMULATOR_TOKEN
from ludus.sdk.join import Target

READY_SECONDS = 150.0
"""A little longer than `ludus up` itself waits for its parts."""
STOP_SECONDS = 45.0
"""A little longer than `ludus up` itself takes at most."""
LAST_LINES = 15


@dataclass(frozen=True)
class Addresses:
    """Addresses of a server."""

    api: str
    """Address of the HTTP API."""
    gateway: str
    """`host:port` at which it takes games."""
    started_here: bool = False
    """Whether this call started it, and ends it."""


@contextmanager
def embedded_stack(home: Path) -> Iterator[Addresses]:
    """Run a server that keeps its data in `home`, and end it. Raises LearnError where it can't start."""
    if not sys.platform.startswith("linux"):
        raise LearnError(
            "No server is named, and Ludus' own runs on Linux: name one with --server or LUDUS_SERVER, or start it in "
            "WSL2 or Docker."
        )
    missing = [name for name in ("server", "worker", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise LearnError(
            f"No server is named, and none can be started here, since {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: name one with --server or LUDUS_SERVER, or run pip "
            "install '.[worker]' in Ludus' repository."
        )
    home.mkdir(parents=True, exist_ok=True)
    ready = home / "ready.json"
    ready.unlink(missing_ok=True)
    log = home / "up.log"
    options = ["--home", str(home), "--port", "0", "--gateway-port", "0", "--ready-file", str(ready)]
    with log.open("ab") as output:
        process = ChildProcess(
            # -P: a folder named `server` in the working directory must not hide the package
            [sys.executable, "-P", "-m", "ludus.cli", "up", *options],
            stdout=output,
            stderr=output,
            own_group=True,  # it does not get our Ctrl-C: the run is stopped before its server
            tied=True,
        )
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not ready.exists():
            if process.exit_code() is not None:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
                raise LearnError("\n".join([f"The server did not start ({log}):", *(f"  {line}" for line in lines)]))
            if time.monotonic() > deadline:
                raise LearnError(f"The server was not ready after {READY_SECONDS:g} s; {log} says more.")
            time.sleep(0.05)
        addresses = json.loads(ready.read_text(encoding="utf-8"))
        yield Addresses(addresses["api"], addresses["gateway"], started_here=True)
    finally:
        process.interrupt()
        process.end(STOP_SECONDS)


STACK_HOME = ".ludus"
"""Folder in the results of a run for the data of a server that is started for it."""

PREVIOUS_DATA = (
    "Previous data from this run ID was found. Either specify a new run ID, use --resume to resume this run, or use "
    "the --force parameter to overwrite existing data."
)
NO_PREVIOUS_DATA = "Previous data from this run ID was not found. Train a new run by removing the --resume flag."


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Train as mlagents-learn does: same flags, same files.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def learn(arguments: Sequence[str]) -> None:
    """Train as `mlagents-learn` does; `ludus learn --help` lists the flags."""
    sys.exit(train(parse(arguments), players_of))


def train(typed: argparse.Namespace, make_players: MakePlayers) -> int:
    """Train in a run to its end, on a server that is started for it where none is named; return the exit code.

    `make_players` returns the games. Raises click.ClickException.
    """
    try:
        settings = read_settings(typed)
        _check_folders(settings)
        check_build(settings)
    except (LearnError, ResultsUnusable) as error:
        raise click.ClickException(str(error)) from error
    new_folder = not settings.folder.exists()
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
        server = typed.server or os.environ.get("LUDUS_SERVER")
        with ExitStack() as stack:
            if server is None:
                addresses = stack.enter_context(embedded_stack(settings.folder / STACK_HOME))
            client = stack.enter_context(Client(server or addresses.api, typed.token))
            if server is not None:
                addresses = Addresses(server, typed.gateway or client.gateway)
            code = _train(client, settings, addresses, typed, make_players)
    except (LearnError, ResultsUnusable) as error:
        raise click.ClickException(str(error)) from error
    except ApiError as error:
        raise click.ClickException(explain(error)) from error
    except OSError as error:
        raise click.ClickException(f"The results can't be written: {error}") from error
    except KeyboardInterrupt:
        echo("Stopped at once.", err=True)
        code = INTERRUPTED
    finally:
        if new_folder and Folder(settings.folder).read_journal() is None:
            # The run was not created: the next attempt must find no previous data.
            shutil.rmtree(settings.folder / STACK_HOME, ignore_errors=True)
            with contextlib.suppress(OSError):
                settings.folder.rmdir()
    return code


def _check_folders(settings: LearnSettings) -> None:
    """Raise the errors of ML-Agents about folders, in its words, before anything is started."""
    if settings.folder.is_dir():
        if not (settings.checkpoints.resume or settings.checkpoints.force):
            raise LearnError(PREVIOUS_DATA)
    elif settings.checkpoints.resume:
        raise LearnError(NO_PREVIOUS_DATA)
    initial = settings.initial_folder
    if initial is not None and not initial.is_dir():
        raise LearnError(
            f"Could not initialize from {initial}. Make sure models have already been saved with that run ID."
        )


def _train(
    client: Client,
    settings: LearnSettings,
    addresses: Addresses,
    typed: argparse.Namespace,
    make_players: MakePlayers,
) -> int:
    """Train a run to its end; return the exit code."""

    def say(line: str) -> None:
        echo(line, kept=LINES)
        sys.stdout.flush()

    say(greeting(version("ludus"), client.server, client.version()))
    warn(settings, say)
    folder = Folder(settings.folder)
    if settings.checkpoints.force:
        begin_anew(client, folder)
    interrupts = Interrupts()
    with interrupts.caught():
        run = open_run(client, settings, folder, say)
        say(info(f"Run {run.id} on {client.server}; games dial {addresses.gateway}."))
        token = None if os.environ.get(SIMULATOR_TOKEN) else typed.token
        target = Target(addresses.gateway, run.id, token, ca_file=typed.ca_file)
        players = None if settings.remote_env else make_players(settings, target, folder.logs, say)
        mirror = Mirror(
            client,
            run,
            folder,
            say=say,
            given=settings.document,
            local=settings.local(),
            server="" if addresses.started_here else client.server,
            command=" ".join(sys.argv[1:]),
        )
        with mirror, players or contextlib.nullcontext():
            ended = follow(client, mirror, interrupts, players, say)
    if ended.state != "SUCCEEDED":
        refusal = None if players is None else players.failure
        echo(f"Error: the run ended as {ended.state}: {refusal or ended.stop_detail or ended.stop_reason}", err=True)
        return 1
    return 0 if players is None or players.failure is None else 1
