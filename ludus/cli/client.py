"""Shared by the client commands: a connection, and errors as one sentence with an exit code."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import click

from ludus.cli.exits import Exit
from ludus.cli.render import LINES, printable
from ludus.client import DEFAULT_SERVER, ApiError, Client, ProblemAnswer, ServerUnreachable
from ludus.protocol.credentials import CLIENT_TOKEN

Parameters = ParamSpec("Parameters")
Handler = Callable[Concatenate[Client, Parameters], None]


class Failure(click.ClickException):
    """An error with an exit code of its own."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(printable(message, LINES))
        self.exit_code = int(code)  # type: ignore[misc]  # click declares it for the class and reads it from the instance


def _failure(error: ApiError) -> Failure:
    """Make a sentence and an exit code of an error of the client."""
    if isinstance(error, ServerUnreachable):
        return Failure(str(error), Exit.UNREACHABLE)
    return Failure(explain(error), Exit.REFUSED)


def explain(error: ApiError) -> str:
    """Say what went wrong; where the server found several mistakes, one line for each."""
    if not isinstance(error, ProblemAnswer) or not error.errors:
        return str(error)
    lines = [f"  {item.path or '(document)'}: {item.message}" for item in error.errors]
    return "\n".join([f"{len(lines)} mistake{'s' if len(lines) > 1 else ''} [{error.code}]:", *lines])


def connected(handler: Handler[Parameters]) -> Callable[Parameters, None]:
    """Give a command `--server`, `--token` and `--project`, and a connected client as its first argument.

    What goes wrong on the server, or on the way there, becomes a sentence and an exit code. The files of TLS come from
    the environment (`ludus.protocol.tls`).
    """

    @click.option(
        "--server", envvar="LUDUS_SERVER", default=DEFAULT_SERVER, show_default=True, help="Address [LUDUS_SERVER]."
    )
    @click.option("--token", help=f"Bearer token; better given as {CLIENT_TOKEN}.")
    @click.option(
        "--project",
        envvar="LUDUS_PROJECT",
        help="Project of the command, for tokens that are bound to no project [LUDUS_PROJECT].",
    )
    @functools.wraps(handler)
    def command(*args: Any, server: str, token: str | None, project: str | None, **options: Any) -> None:
        try:
            with Client(server, token, project=project) as client:
                handler(client, *args, **options)
        except ApiError as error:
            raise _failure(error) from error

    return command  # type: ignore[return-value]  # click adds the three options, which the caller doesn't see
