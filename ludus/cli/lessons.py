"""`ludus run lessons`, `set-lesson`, `set-parameter`: the environment parameters of a run."""

from typing import Any

import click
import yaml

from ludus.cli.client import connected
from ludus.cli.options import json_option
from ludus.cli.render import echo, event_line, print_json
from ludus.client import TERMINAL_STATES, Client
from ludus.schemas import EnvironmentParameters

CHANGES = frozenset({"lesson_changed", "parameter_changed"})
"""Types of events that say how a parameter came to be where it is."""


class YamlValue(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A number, or a sampler as in configurations, written as YAML."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text."""
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError:
            self.fail(f"{value!r} is not valid YAML", param, ctx)


@click.command()
@click.argument("run")
@json_option
@connected
def lessons(client: Client, *, run: str, as_json: bool) -> None:
    """Show the present lesson of each environment parameter and the criterion that it waits for.

    Of a run that has ended: the last lesson of each, and the changes before it.
    """
    record = client.runs.get(run)
    found = client.environment_parameters.get(record.id)
    ended = record.state in TERMINAL_STATES
    _show(found, as_json, ended=ended)
    if ended and not as_json and found.parameters:
        for event in client.events.list(record.id):
            if event.type in CHANGES:
                echo(event_line(event))


@click.command("set-lesson")
@click.argument("run")
@click.argument("parameter")
@click.argument("lesson")
@json_option
@connected
def set_lesson(client: Client, *, run: str, parameter: str, lesson: str, as_json: bool) -> None:
    """Begin another LESSON of a PARAMETER, by its name or its number (`2` is the second), in a live RUN."""
    _show(client.environment_parameters.set_lesson(run, parameter, lesson), as_json)


@click.command("set-parameter")
@click.argument("run")
@click.argument("parameter")
@click.argument("value", type=YamlValue())
@json_option
@connected
def set_parameter(client: Client, *, run: str, parameter: str, value: Any, as_json: bool) -> None:
    """Give the present lesson of a PARAMETER another VALUE in a live RUN: a number, or a sampler as YAML.

    Write `--` before a negative number.
    """
    _show(client.environment_parameters.set_value(run, parameter, value), as_json)


def _show(found: EnvironmentParameters, as_json: bool, *, ended: bool = False) -> None:
    if as_json:
        print_json(found)
        return
    for parameter in found.parameters:
        echo(f"{parameter.name}: {parameter.waits_for}")
    undone = "the run ended before that" if ended else "the trainer has not done it yet"
    for edit in found.pending:
        wanted = ", ".join(f"{key} {value}" for key, value in edit.change.items())
        echo(f"{edit.parameter}: {wanted} was asked for; {undone}")
    if not found.parameters:
        echo("The run has no environment parameters.")
