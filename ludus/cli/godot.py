"""`ludus godot`: Godot builds, or the editor, as simulators of a run.

Each copy of the build has a process of `ludus simulate`, with the adapter `godot`: it waits for the run, comes back
when the connection breaks, and is started again with its game when that crashes or hangs. With `--config` the run is
made here as `ludus learn` makes it, on a server that is started for it where none is named.
"""

import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import click
from click.core import ParameterSource

from ludus.child_process import ChildProcess
from ludus.cli.collect import printed_games
from ludus.cli.exits import GAMES_HELP, Exit, sigterm_interrupts
from ludus.cli.learn import train
from ludus.cli.learn_options import parse, read_settings
from ludus.cli.options import (
    EXISTING_FILE,
    FOLDER,
    REST,
    SEED,
    TakesTheRest,
    ca_file_option,
    connect_timeout_option,
    env_args_option,
    gateway_option,
    option,
    parsed,
    record_option,
    token_option,
)
from ludus.cli.render import echo
from ludus.cli.simulate import Plan, finish_recording, name_recordings, play_all
from ludus.cli.sources import Source, teams_type, try_to_make
from ludus.games.godot.game import BASE_PORT, EDITOR, LAST_PORT
from ludus.games.godot.model import NotForGodot, write_for_godot
from ludus.games.settings import Collect, can_collect_here
from ludus.sdk.join import Target

ANY_NUMBER: Final = 1_000_000
"""Restarts of the editor's process: a person may press Stop as often as they like."""
GOODBYE_SECONDS: Final = 10.0
OF_THE_RUN: Final = frozenset({"run", "config", "resume", "force", "results_dir", "server", "token", "env_args"})
"""Parameters that make a run, or lead to it."""


@parsed("call")
def call_type(text: str) -> tuple[str, str]:
    """Read `PARAMETER=METHOD`."""
    parameter, _, method = text.partition("=")
    if not parameter or not re.fullmatch(r"[A-Za-z_]\w*", method, re.ASCII):
        raise ValueError(f"{text!r} names no method; write for instance difficulty=set_difficulty")
    return parameter, method


@click.command(cls=TakesTheRest, epilog=GAMES_HELP)
@click.argument("run", required=False)
@click.option("--env", help="The build, with or without its extension. [wait for the editor]")
@option("--num-envs", type=click.IntRange(1, 256), default=1, help="Copies of the build.")
@env_args_option
@click.option(
    "--config", type=EXISTING_FILE, help="Make the run here from this file, and a server where none is named."
)
@click.option("--resume", is_flag=True, help="With --config: go on with the run of this name.")
@click.option("--force", is_flag=True, help="With --config: start again even if results of this name exist.")
@click.option("--results-dir", type=FOLDER, help="With --config: folder of the results of all runs. [results]")
@option(
    "--base-port",
    type=click.IntRange(1, LAST_PORT),
    default=BASE_PORT,
    help="Port of the editor, and of the first copy; the others take the next free ones.",
)
@click.option(
    "--no-graphics", is_flag=True, help="Start without graphics, as fast as the game can; cameras show nothing."
)
@click.option(
    "--fixed-fps",
    type=click.IntRange(1),
    help="Frames per second of game time, as fast as the game can. [real time; 60 without graphics]",
)
@click.option("--speedup", type=click.FloatRange(0, min_open=True), help="Game seconds per second. [the Sync node's]")
@click.option("--action-repeat", type=click.IntRange(1), help="Physics frames of each action. [the Sync node's]")
@click.option(
    "--call",
    "calls",
    metavar="PARAMETER=METHOD",
    type=call_type,
    multiple=True,
    help="Call METHOD_VALUE of all agents when an environment parameter changes. Can be given several times.",
)
@click.option("--behavior", help="Name of the one behavior of all policies. [the policy_name of the agents]")
@click.option(
    "--teams",
    type=teams_type,
    default=(),
    metavar="TEAM,...",
    help="Team of each agent in the game's order, or one for all. [one for each policy_name, if there are several]",
)
@option("--seed", type=SEED, default=0, help="Seed of the first copy; the others have the next ones.")
@option(
    "--timeout-wait",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    help="Seconds that a copy may take to dial, and for each answer.",
)
@option("--restarts", type=click.IntRange(0), default=10, help="Maximum number of restarts in a row of a copy.")
@click.option("--logs", type=FOLDER, help="Folder of what the copies print. [results/RUN/run_logs]")
@click.option(
    "--collect",
    type=click.Choice(["here", "there"]),
    help="Where actions are computed: on this machine, or by the worker. [there if the server is on this machine; "
    "else here, where the run allows it]",
)
@gateway_option
@token_option
@ca_file_option
@click.option("--label", help="Label in the list of simulators. [the build and this host]")
@connect_timeout_option
@record_option("the episodes", " With several copies each has its own, FILE-0.npz and so on.")
@click.pass_context
def godot(ctx: click.Context, /, *, run: str | None, config: Path | None, env: str | None, **options: Any) -> None:
    """Connect Godot games to RUN (an id or a name) until it ends: copies of a build, or the editor.

    For instance `ludus godot chase --env builds/Chase.x86_64 --num-envs 4 --no-graphics`. The games need nothing but
    the plug-in of Godot RL Agents, 4.x or its branch godot3: they dial a port of this machine, as they would dial its
    Python package. When the run pauses or its server restarts they wait. `ludus godot --config trainer.yaml` is all
    that a first run needs: it starts a server, makes the run, and writes the model for Godot when it ends.
    """
    if env is None and options["num_envs"] > 1:
        raise click.UsageError("--num-envs counts copies of a build: name it with --env")
    if config is None and run is None:
        raise click.UsageError(
            "name a RUN, or a configuration to make one from, as in ludus godot --config trainer.yaml"
        )
    given = [name for name in ("resume", "force", "results_dir") if options.pop(name) and config is None]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} belongs to --config")
    folder = re.sub(r"[^0-9A-Za-z._-]", "_", run or "").strip(".") or "run"
    settings: dict[str, object] = {
        "env_args": list(options.pop("env_args")),
        "call": dict(options.pop("calls")),
        "logs": str(options.pop("logs") or Path("results", folder, "run_logs")),
        **{
            name: options.pop(name)
            for name in ("base_port", "no_graphics", "fixed_fps", "speedup", "action_repeat", "timeout_wait")
        },
    }
    source = Source("godot", env or EDITOR, settings, options.pop("behavior"), False, options.pop("teams"))
    try_to_make(source).close()  # which says what is wrong, before anything is started
    token, ca_file, server = options.pop("token"), options.pop("ca_file"), options.pop("server")
    game = "Godot editor" if env is None else Path(env).name
    label = options.pop("label") or f"{game} on {platform.node()}"[:200]
    timeout = options.pop("connect_timeout")
    if config is None:
        sys.exit(_play(source, Target(server, str(run), token, label, ca_file, timeout), **options))
    name = run or config.stem
    flags = [f"--{flag}" for flag in ("resume", "force") if ctx.params[flag]]
    results = [f"--results-dir={ctx.params['results_dir']}"] if ctx.params["results_dir"] else []
    typed = parse([str(config), f"--run-id={name}", *flags, *results])
    typed.token, typed.ca_file = token, ca_file
    if ctx.get_parameter_source("server") is not ParameterSource.DEFAULT:
        typed.gateway = server
    code = train(typed, lambda _settings, target, _logs, say: _Games(_command(ctx, target), say))
    write_all_for_godot(read_settings(typed).folder)
    sys.exit(code)


def _play(
    source: Source,
    target: Target,
    *,
    num_envs: int,
    seed: int,
    restarts: int,
    collect: Collect | None,
    record: Path | None,
) -> int:
    """Play in a run until it ends; return the exit code."""
    recordings = name_recordings(record, num_envs)
    plans = [
        Plan(
            source=source,
            envs=1,
            token_given=target.token is not None,
            scripted={},
            seed=seed + index,
            server=target.server,
            run=target.run,
            label=target.label,
            ca_file=None if target.ca_file is None else str(target.ca_file),
            connect_timeout_seconds=target.connect_timeout_seconds,
            record=None if recording is None else str(recording),
        )
        for index, recording in enumerate(recordings)
    ]
    with sigterm_interrupts(), printed_games():
        code = play_all(plans, target, ANY_NUMBER if source.name == EDITOR else restarts, collect)
    for recording in filter(None, recordings):
        finish_recording(recording)
    return code


class _Games:
    """The games of a run that was made here: this command again, for the run."""

    def __init__(self, command: Sequence[str], say: Callable[[str], None]) -> None:
        self.refusal: str | None = None
        self._command = command
        self._say = say
        self._last = ""
        self._process: ChildProcess | None = None

    @property
    def failure(self) -> str | None:
        """The last words of the games, once all of them have ended without an end of the run."""
        code = None if self._process is None else self._process.exit_code()
        return None if code in {None, Exit.OK} else self._last or f"the games ended with exit code {code}"

    def __enter__(self) -> Self:
        self._process = ChildProcess(self._command, own_group=True, tied=True, stdout=self._hear, stderr=self._hear)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.interrupt()
            self._process.end(GOODBYE_SECONDS)

    def _hear(self, line: str) -> None:
        self._last = line
        self._say(line)


def _command(ctx: click.Context, target: Target) -> list[str]:
    """Return the command that connects the games of this call to a run."""
    command = [sys.executable, "-P", "-m", "ludus.cli", "godot", target.run, "--server", target.server]
    for parameter in ctx.command.params:
        value = ctx.params[str(parameter.name)]
        if parameter.name in OF_THE_RUN or value in {None, False, ()} or not isinstance(parameter, click.Option):
            continue
        name = parameter.opts[0]
        match value:
            case True:
                command.append(name)
            case [(_, _), *_]:
                command += (f"{name}={key}={method}" for key, method in value)
            case tuple():
                command.append(f"{name}={','.join(map(str, value))}")
            case _:
                command.append(f"{name}={value}")
    if ctx.params["collect"] is None and can_collect_here():
        command.append("--collect=here")  # such a run has no other collector
    return [*command, REST, *ctx.params["env_args"]]


def write_all_for_godot(folder: Path) -> None:
    """Write the models of a folder of results in the form for Godot, to its folder `godot`."""
    for file in sorted(folder.glob("*.onnx")):
        try:
            written = write_for_godot(file, folder / "godot" / file.name)
        except NotForGodot as error:
            echo(str(error), err=True)
        else:
            echo(f"for Godot: {written}", err=True)
