"""`ludus run lessons`, `set-lesson`, `set-parameter`: the environment parameters of a run."""

from collections.abc import Sequence
from typing import Any

import click
import yaml

from ludus.cli.client import answering, connected
from ludus.cli.options import Parsed, json_option
from ludus.cli.plain_yaml import read_yaml
from ludus.cli.render import echo, event_line, print_answer
from ludus.client import TERMINAL_STATES, Client
from ludus.schemas import EnvironmentParameters

CHANGES = frozenset({"lesson_changed", "parameter_changed"})
"""Types of events that change a parameter."""


def _read_value(text: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        raise ValueError(f"{text!r} is not valid YAML") from None


def _show(found: EnvironmentParameters, *, ended: bool = False) -> None:
    for parameter in found.parameters:
        echo(f"{parameter.name}: {parameter.waits_for}")
    undone = "the run ended before that" if ended else "the trainer has not done it yet"
    for edit in found.pending:
        wanted = ", ".join(f"{key} {value}" for key, value in edit.change.items())
        echo(f"{edit.parameter}: {wanted} was asked for; {undone}")
    if not found.parameters:
        echo("The run has no environment parameters.")


@click.command()
@click.argument("run")
@json_option
@connected
def lessons(client: Client, *, run: str, as_json: bool) -> None:
    """Show the present lesson of each environment parameter and the criterion that it waits for.

    Of a run that has ended: the last lesson of each, and the changes before it.
    """
    record = client.runs.get(run)
    ended = record.state in TERMINAL_STATES

    def show(found: EnvironmentParameters) -> None:
        _show(found, ended=ended)
        for event in client.events.list(record.id) if ended and found.parameters else ():
            if event.type in CHANGES:
                echo(event_line(event))

    print_answer(client.environment_parameters.get(record.id), show, as_json=as_json)


@click.command("set-lesson")
@click.argument("run")
@click.argument("parameter")
@click.argument("lesson")
@answering(_show)
def set_lesson(client: Client, *, run: str, parameter: str, lesson: str) -> EnvironmentParameters:
    """Begin another LESSON of a PARAMETER, by its name or its number (`2` is the second), in a live RUN."""
    return client.environment_parameters.set_lesson(run, parameter, lesson)


@click.command("set-parameter")
@click.argument("run")
@click.argument("parameter")
@click.argument("value", type=Parsed("value", _read_value))
@answering(_show)
def set_parameter(client: Client, *, run: str, parameter: str, value: Any) -> EnvironmentParameters:
    """Give the present lesson of a PARAMETER another VALUE in a live RUN: a number, or a sampler as YAML.

    Write `--` before a negative number.
    """
    return client.environment_parameters.set_value(run, parameter, value)


COMMANDS: Sequence[click.Command] = (lessons, set_lesson, set_parameter)
