"""The `ludus` command: client commands, and those of `server` and `worker` where they are installed.

Modules are imported when their command is called: `ludus run list` must not wait for Gymnasium, and a user's machine
does not have the server. `server` and `worker` add their commands through the entry point group `ludus.commands`, each
a mapping from name to command.
"""

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points, version

import click

from ludus.child_process import end_with_parent
from ludus.console import lost_output, reader_has_gone, tolerate
from ludus.threads import end_with_any_thread

CLIENT_COMMANDS: Mapping[str, str] = {
    "audit": "overview",
    "checkpoint": "checkpoint",
    "collect": "collect",
    "compare": "compare",
    "config": "config",
    "contract": "contract",
    "evaluate": "gate",
    "events": "overview",
    "exploitability": "exploitability",
    "experiment": "experiment",
    "fake-server": "contract",
    "gate": "gate",
    "godot": "godot",
    "demonstration": "demonstration",
    "doctor": "doctor",
    "ladder": "ladder",
    "learn": "learn",
    "play": "play",
    "proto": "proto",
    "queue": "overview",
    "recommend": "recommend",
    "recording": "recording",
    "replay": "replay",
    "run": "run",
    "simulate": "simulate",
    "simulator": "overview",
    "token": "token",
    "tune": "tune",
    "unity": "unity",
    "webhook": "webhook",
    "worker": "worker",
}
"""Name of a command -> its module in this package, where it is an attribute of this name (with _ in place of -)."""

PLUG_INS = "ludus.commands"
"""Entry point group; the wheel that users install names these entry points too, without the packages behind them."""


EXTENDED = frozenset({"worker"})
"""Client commands that a package extends: where it is installed, its command has the client's subcommands, too."""
OWN_PACKAGES = frozenset({"ludus", "server", "worker"})

WORK = frozenset(
    {"collect", "controller", "gateway", "godot", "learn", "server", "simulate", "tune", "unity", "up", "worker"}
)
"""Commands whose output is a log beside their work, not an answer: it may be lost, and they succeed all the same."""

EXTRAS: Mapping[str, str] = {
    "admin": "server",
    "collect": "collect",
    "doctor": "gymnasium",
    "gateway": "server",
    "migrate": "server",
    "play": "play",
    "replay": "collect",
    "server": "server",
    "simulate": "gymnasium",
    "unity": "collect",
    "controller": "server",
    "up": "worker",
    "worker": "worker",
}
"""Name of a command -> the extra of the installation that it needs (`pip install '.[worker]'` in the repository)."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands of this installation."""
        return sorted({*super().list_commands(ctx), *CLIENT_COMMANDS, *_plugged_in()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name in EXTENDED and (extended := _plugged_in().get(cmd_name)) is not None:
            return extended
        if cmd_name in CLIENT_COMMANDS:
            module = importlib.import_module(f"ludus.cli.{CLIENT_COMMANDS[cmd_name]}")
            command = getattr(module, cmd_name.replace("-", "_"))
            assert isinstance(command, click.Command)
            return command
        command = _plugged_in().get(cmd_name) or super().get_command(ctx, cmd_name)
        if command is not None or cmd_name not in EXTRAS:
            return command

        def explain(**_arguments: object) -> None:
            raise client_only(cmd_name)

        anything = click.Argument(["anything"], nargs=-1, type=click.UNPROCESSED)
        settings = {"ignore_unknown_options": True, "help_option_names": list[str]()}
        return click.Command(cmd_name, callback=explain, params=[anything], context_settings=settings, hidden=True)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; a missing library gives a sentence, not a traceback."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            if library in OWN_PACKAGES or ctx.invoked_subcommand is None or ctx.invoked_subcommand not in EXTRAS:
                raise
            raise click.ClickException(f"{library} is not installed. {_advice(ctx.invoked_subcommand)}") from error


def _plugged_in() -> dict[str, click.Command]:
    commands: dict[str, click.Command] = {}
    for entry in entry_points(group=PLUG_INS):
        try:
            commands.update(entry.load())
        except ModuleNotFoundError as error:
            # In the light installation the package of the entry point is missing.
            if error.name is None or not entry.module.startswith(error.name):
                raise
    return commands


def client_only(name: str) -> click.ClickException:
    """Return the error of a command whose package this installation does not have."""
    return click.ClickException(f"This installation holds the client only. {_advice(name)}")


def _advice(name: str) -> str:
    return f"`ludus {name}` needs the extra `{EXTRAS[name]}`: run pip install '.[{EXTRAS[name]}]' in Ludus' repository."


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("ludus"), prog_name="ludus")
def ludus() -> None:
    """Train game agents: start a server, queue a run, connect simulators, download the model."""


def main() -> None:
    """Run the command line; the console script's entry point."""
    end_with_parent()
    end_with_any_thread()
    tolerate()
    try:
        ludus(prog_name="ludus")
    except SystemExit as end:
        error = None if reader_has_gone() else lost_output()
        if error is None or end.code or WORK & {*sys.argv[1:2]}:
            raise
        sys.stderr.write(f"Error: a part of the output is lost: {error}\n")
        sys.exit(1)
