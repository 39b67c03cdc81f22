"""Shared by the client commands: a connection, and errors as one sentence with an exit code."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ludus.cli.exits import Exit
from ludus.cli.options import json_option, option
from ludus.cli.render import LINES, Show, print_answer, printable
from ludus.client import DEFAULT_SERVER, ApiError, Client, ProblemAnswer, ServerUnreachable
from ludus.client.backoff import FIRST_ANSWER_SECONDS, request_limit
from ludus.protocol.credentials import CLIENT_TOKEN

Handler = Callable[..., object]
"""Takes a connected client, then the options of its command by their names."""


class Failure(click.ClickException):
    """An error with an exit code of its own."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(printable(message, LINES))
        self.exit_code = int(code)  # type: ignore[misc]  # click declares it for the class and reads it from the instance


def explain(error: ApiError, file: str = "") -> str:
    """Return the message of an error; where the server found several mistakes, one line for each.

    `file` is the name of the configuration file that was sent.
    """
    if not isinstance(error, ProblemAnswer) or not error.errors:
        return str(error)
    lines = [f"{place(item.line, file) or '  '}{item.path or '(document)'}: {item.message}" for item in error.errors]
    return "\n".join([f"{len(lines)} mistake{'s' if len(lines) > 1 else ''} [{error.code}]:", *lines])


def place(line: int | None, file: str) -> str:
    """Return `FILE:LINE: `, as editors read it, for the front of a problem; empty where it has no line, or no file."""
    return f"{file}:{line}: " if file and line is not None else ""


@contextmanager
def sending(file: str) -> Iterator[None]:
    """Explain problems of a configuration that is sent meanwhile with the file that it comes from."""
    try:
        yield
    except ProblemAnswer as error:
        raise Failure(explain(error, file), Exit.REFUSED) from error


@contextmanager
def writing(target: Path | str) -> Iterator[None]:
    """Explain errors of a file, or folder, that is written meanwhile."""
    try:
        yield
    except OSError as error:
        raise Failure(f"cannot write {target}: {error.strerror or error}", Exit.REFUSED) from error


def answering(text: Show) -> Callable[[Handler], Handler]:
    """Make a connected command of a handler, with `--json`, that prints the handler's result.

    `text` returns the line for people, or prints by itself and returns None (`ludus.cli.render.table`).
    """

    def decorate(handler: Handler) -> Handler:
        @json_option
        @connected
        @functools.wraps(handler)
        def command(client: Client, *args: object, as_json: bool, **options: object) -> None:
            print_answer(handler(client, *args, **options), text, as_json=as_json)

        return command

    return decorate


def connected(handler: Handler) -> Handler:
    """Give a command `--server`, `--token` and `--project`, and a connected client as its first argument.

    An error of the server, or of the connection, becomes a sentence and an exit code. The files of TLS come from the
    environment (`ludus.protocol.tls`).
    """

    @option("--server", envvar="LUDUS_SERVER", default=DEFAULT_SERVER, help="Address [LUDUS_SERVER].")
    @click.option("--token", help=f"Bearer token; better given as {CLIENT_TOKEN}.")
    @click.option(
        "--project",
        envvar="LUDUS_PROJECT",
        help="Project of the command, for tokens that are bound to no project [LUDUS_PROJECT].",
    )
    @functools.wraps(handler)
    def command(*args: object, server: str, token: str | None, project: str | None, **options: object) -> None:
        try:
            # A server that does not answer holds no request for longer than the command is to wait.
            timeout = click.get_current_context().params.get("timeout")
            limit = request_limit(None if timeout is None else max(timeout, FIRST_ANSWER_SECONDS))
            with limit, Client(server, token, project=project) as client:
                handler(client, *args, **options)
        except ApiError as error:
            code = Exit.UNREACHABLE if isinstance(error, ServerUnreachable) else Exit.REFUSED
            raise Failure(explain(error), code) from error

    return command
