"""`ludus unity`: Unity builds, or the Editor, as simulators of a run."""

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import click

from ludus.cli.collect import run_until_end
from ludus.cli.exits import GAMES_HELP
from ludus.cli.options import (
    FOLDER,
    TakesTheRest,
    ca_file_option,
    connect_timeout_option,
    env_args_option,
    gateway_option,
    option,
    token_option,
)
from ludus.games.builds import play
from ludus.games.settings import BASE_PORT, EDITOR_PORT, LAST_PORT, GameSettings
from ludus.protocol.side_channels import EngineOverrides
from ludus.sdk.join import Target

INTERRUPTED_ONCE: Final = "telling the games to quit; Ctrl-C again ends them at once"
_ANY_NUMBER: Final = "-1: any number."
_INT32 = click.IntRange(-(2**31), 2**31 - 1)
_PIXELS = click.IntRange(1, 2**31 - 1)


@click.command(cls=TakesTheRest, epilog=GAMES_HELP)
@click.argument("run")
@click.option(
    "--env",
    type=click.Path(path_type=Path),
    help="The build, with or without its extension. [default: wait for the Editor]",
)
@option("--num-envs", type=click.IntRange(1, 256), default=1, help="Copies of the build.")
@env_args_option
@option(
    "--base-port",
    type=click.IntRange(1, LAST_PORT),
    default=BASE_PORT,
    help="Port of the first copy; the others take the next ones.",
)
@option("--editor-port", type=click.IntRange(1, LAST_PORT), default=EDITOR_PORT, help="The Editor's port.")
@click.option("--no-graphics", is_flag=True, help="Start without graphics; cameras then show nothing.")
@click.option("--no-graphics-monitor", is_flag=True, help="Start all but the first copy without graphics.")
@click.option("--width", type=_PIXELS, help="Pixels of the window. [the run's engine settings]")
@click.option("--height", type=_PIXELS, help="Pixels of the window. [the run's]")
@click.option("--quality-level", type=_INT32, help="Index of a quality level. [the run's]")
@click.option("--time-scale", type=click.FloatRange(0), help="Game seconds per second. [the run's]")
@click.option("--target-frame-rate", type=_INT32, help="Frames per second; -1: no limit. [the run's]")
@click.option("--capture-frame-rate", type=_INT32, help="Frames per second of game time. [the run's]")
@option(
    "--timeout-wait",
    "timeout_wait_seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    help="Seconds that a copy may take to call first, to call again, and to quit.",
)
@option(
    "--max-lifetime-restarts",
    type=click.IntRange(-1),
    default=10,
    help=f"How often each copy is started again if it ends before the run. {_ANY_NUMBER}",
)
@option(
    "--restarts-rate-limit-n", type=click.IntRange(-1), default=1, help=f"How often within the period. {_ANY_NUMBER}"
)
@option(
    "--restarts-rate-limit-period-s",
    "restarts_rate_limit_period_seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    help="The period, in seconds.",
)
@click.option("--logs", type=FOLDER, help="Folder of the player logs. [default: results/RUN/run_logs]")
@click.option(
    "--collect",
    type=click.Choice(["here", "there"]),
    help="Where actions are computed: on this machine, or by the worker. [here, where the run allows it]",
)
@gateway_option
@token_option
@ca_file_option
@click.option("--label", default="", help="Label in the list of simulators. [the build and this host]")
@connect_timeout_option
def unity(
    *,
    run: str,
    env: Path | None,
    num_envs: int,
    logs: Path | None,
    server: str,
    token: str | None,
    ca_file: Path | None,
    label: str,
    connect_timeout: float,
    **settings: Any,
) -> None:
    """Connect Unity games to RUN (an id or a name) until it ends: copies of a build, or the Editor.

    For instance `ludus unity soccer --env builds/Soccer --num-envs 4 --no-graphics`. The games need nothing but their
    ML-Agents package: they dial a port of this machine, as they would dial mlagents-learn. When the run pauses or its
    server restarts they wait. Ctrl-C asks them to quit; a second one ends them at once.
    """
    if env is None and num_envs > 1:
        raise click.UsageError("--num-envs counts copies of a build: name it with --env")
    target = Target(server, run, token, label, ca_file, connect_timeout)
    engine = EngineOverrides(**{field.name: settings.pop(field.name) for field in fields(EngineOverrides)})
    # A name that every file system accepts.
    folder = re.sub(r"[^0-9A-Za-z._-]", "_", run).strip(".") or "run"
    logs = logs or Path("results", folder, "run_logs")
    settings_of_games = GameSettings(target, env=env, num_envs=num_envs, engine=engine, logs=logs, **settings)
    sys.exit(run_until_end(play(settings_of_games), INTERRUPTED_ONCE))
